"""Put prepared parts in order: cut their rows into chunks, in file order or grouped by what they share.

Each stretch of the order is one file, created once, and all that is decided is written before it
is acted on: any worker may go on where another stopped. While it is open whether the rest will be
grouped, no more is cut than the engines need for the moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

import numpy as np

from batchwright.core.errors import StorageError
from batchwright.core.records import Chunk, OrderBatch, OrderDecision, PreparedReceipt, Slice
from batchwright.ordering.arrange import Arrangement, remove_leftovers
from batchwright.ordering.numbering import Numbered, Numbering, Position, write_rejected
from batchwright.ordering.pilot_rows import choose_pilot, pool_is_enough
from batchwright.ordering.watching import Watcher
from batchwright.plan.chunks import (
    Ahead,
    count_rows,
    cut_chunks,
    slices_of_rows,
    take_planned,
)
from batchwright.plan.gate import UNKNOWN_CACHE
from batchwright.plan.guard import judge
from batchwright.plan.pace import AFTER_S, SHORT_S, WHILE_PREPARING_S, arranging_s, rows_meanwhile
from batchwright.rundir import artifacts, layout
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.decided import read_decision
from batchwright.rundir.events import Events
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.prepared import row_numbers
from batchwright.rundir.state import last_rows
from batchwright.rundir.storage import Storage

PARTS_PER_BATCH = 16

# A job of fewer pilots than this has none: it would be over before the estimate is worth anything.
PILOTS_IN_JOB = 4

# Orders by the length of prompts, and of answers.
BY_LENGTH = ("length", "longest")

_NOTHING = Numbered((), ())
DISK_HINT = "Grouped rows are written a second time: is there room on the disk?"


class Sequencer:
    """Writes the order of a run, stretch by stretch, as prepared parts become ready.

    Args:
        storage: of the run.
        manifest: of the run.
    """

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self._storage = storage
        self._manifest = manifest
        run = manifest.job["run"]
        self._chunk_rows: int | None = run["chunk_rows"]
        self._replicas = manifest.most_engines
        self._asked: str = run["order"]
        if manifest.job["task"] != "generate" and self._asked in ("auto", "prefix"):
            self._asked = "file"  # nothing is cached between rows
        self._numbering = Numbering(storage, manifest)
        self._watcher = Watcher(storage, self._replicas, manifest.kv_tokens)
        self.waits_for_engine = self._watcher.is_starting
        self._events = Events(storage, "order", SystemClock())
        self._arrangement: Arrangement | None = None
        self._steps: Iterator[None] | None = None
        self._decision: OrderDecision | None = None
        self._at = Position()
        self._restore()

    @property
    def finished(self) -> bool:
        """Whether the order is complete."""
        return self._at.last

    def advance(self) -> bool:
        """Do the next piece of work, as a rule a stretch; False if there was nothing to do."""
        at = self._at
        if at.last:
            return False
        if at.grouped:
            return self._go_on_grouped()
        if at.sequence and self._numbering.is_complete(at):
            return self._go_on_numbered()
        receipts = self._ready_parts()
        if receipts or self._numbering.is_complete(at):
            return self._number(receipts)
        return self._top_up()

    def _ready_parts(self) -> list[PreparedReceipt]:
        """The parts that can be numbered now."""
        if not self._begins_with_pilot:
            return self._numbering.ready_parts(self._at, PARTS_PER_BATCH)
        is_enough = partial(pool_is_enough, self._manifest, self._watcher.engine_up_s())
        return self._numbering.parts_for_pilot(self._at, is_enough)

    def _restore(self) -> None:
        self._drop_arrangement()
        state = self._watcher.read_order()
        self._numbering.forget()
        at = self._at = Position()
        written = set(self._storage.names(layout.REJECTED))
        for batch in state.batches:
            if batch.generation > 0:
                continue
            self._numbering.replay(batch, at)
            at.chunks += len(batch.chunks)
            at.waiting = [*last_rows(at.waiting, batch.carried), *batch.waiting]
            at.sequence = batch.sequence + 1
            at.grouped = batch.order != "file"
            at.last = batch.last
            # Whoever ordered it may have died before it could write this.
            if layout.rejected_batch(batch.sequence).rpartition("/")[2] not in written:
                write_rejected(self._storage, batch)
        self._decision = read_decision(self._storage) or self._decision

    def _drop_arrangement(self) -> None:
        if self._arrangement is not None:
            self._arrangement.close()
        self._arrangement = self._steps = None

    @property
    def _begins_with_pilot(self) -> bool:
        return self._manifest.pilot_rows > 0 and self._at.sequence == 0

    def _number(self, receipts: list[PreparedReceipt]) -> bool:
        """Number the rows of some parts; cut all of them, or what is needed now."""
        after = self._at.next()
        numbered = self._numbering.number(receipts, after)
        complete = self._numbering.is_complete(after)
        pilot: list[Chunk] = []
        if self._begins_with_pilot and not self._is_small(after, complete=complete):
            pilot, after.waiting = choose_pilot(self._storage, self._manifest, after.waiting)
        ahead: Ahead | None = None
        if self._asked != "file":
            chunks, rows = self._watcher.missing(WHILE_PREPARING_S)
            ahead = Ahead(chunks - len(pilot), rows)
        cut = self._cut(after, ahead, first=self._at.chunks + len(pilot), complete=complete)
        after.last = complete and not after.waiting
        return self._write(after, [*pilot, *cut], numbered, pilot_chunks=len(pilot))

    def _is_small(self, after: Position, *, complete: bool) -> bool:
        """Whether a pilot would be a large part of the job; one that was asked for is made."""
        few = after.rows < PILOTS_IN_JOB * self._manifest.pilot_rows
        return self._manifest.pilot_pool > 0 and complete and few

    def _cut(
        self, after: Position, ahead: Ahead | None, *, first: int, complete: bool
    ) -> list[Chunk]:
        chunks, after.waiting = cut_chunks(
            after.waiting,
            first,
            self._chunk_rows,
            last=complete,
            replicas=self._replicas,
            ahead=ahead,
        )
        return chunks

    def _top_up(self, at_least_rows: int = 0) -> bool:
        """In file order, cut what the engines need for the moment."""
        if self._asked == "file" or not self._at.waiting:
            return False
        complete = self._numbering.is_complete(self._at)
        chunks, rows = self._watcher.missing(
            AFTER_S if complete else WHILE_PREPARING_S, at_least_rows
        )
        if not (chunks or rows):
            return False
        after = self._at.next()
        cut = self._cut(after, Ahead(chunks, rows), first=after.chunks, complete=complete)
        after.last = complete and not after.waiting
        return self._write(after, cut) if cut else False

    def _go_on_numbered(self) -> bool:
        """All rows are numbered: look at those that wait, decide, group them or do not."""
        order = self._asked if self._decision is None else self._decision.order
        if "file" in (order, self._asked):
            return self._cut_all()
        if self._arrangement is None:
            if order == "auto" and not self._watcher.may_decide():
                rows = count_rows(self._at.waiting)
                return self._settle(OrderDecision(order, "file", UNKNOWN_CACHE, rows, 0, 0))
            by = order if order in BY_LENGTH else "prefix"
            self._arrangement = Arrangement(self._storage, self._manifest, self._at.waiting, by)
            self._steps = self._arrangement.look()
        if self._steps is not None:
            return self._step(self._arrangement)
        if self._decision is None:
            return self._decide(self._arrangement)
        rows = count_rows(self._at.waiting)
        seconds = arranging_s(rows, self._arrangement.prompt_tokens)
        in_time = self._watcher.is_starting() and seconds < SHORT_S
        ahead = 0 if in_time else rows_meanwhile(seconds, self._replicas, self._watcher.rows_per_s)
        if self._watcher.somebody_runs() and self._top_up(ahead):
            return True
        self._steps = self._arrangement.group(self._at.waiting, self._at.chunks)
        return True

    def _step(self, arrangement: Arrangement) -> bool:
        assert self._steps is not None
        try:
            ended = next(self._steps, self) is self
        except (OSError, StorageError) as error:
            if self._storage.read_if_there(layout.order_batch(0, self._at.sequence)) is None:
                raise StorageError(f"rows cannot be put in order: {error}", DISK_HINT) from error
            self._restore()  # another took over, settled the order, and removed our files
            return True
        if not ended:
            # What is being grouped must not be taken away any more.
            if self._decision is None and self._watcher.is_time_to_look():
                self._top_up()
            return True
        self._steps = None
        if arrangement.slices:
            return self._begin_grouped(arrangement.slices)
        return True

    def _decide(self, arrangement: Arrangement) -> bool:
        """Write down which order the rest gets, once that can be said."""
        decision = arrangement.decide(self._asked, self._watcher.known())
        # Answers are taken to fill their caps while none is known, which makes prompts look cheap:
        # what pays even so need not wait for the first answers.
        if self._asked == "auto" and decision.order == "file" and self._watcher.knows_soon():
            return self._top_up()
        return self._settle(decision)

    def _settle(self, decision: OrderDecision) -> bool:
        if self._storage.commit(layout.ORDER_DECISION, artifacts.dump(decision)):
            self._events.write("order_decided", **asdict(decision))
            self._decision = decision
        else:  # another worker took over while this one was thought dead
            self._restore()
        return True

    def _cut_all(self) -> bool:
        """File order for all that waits."""
        after = self._at.next()
        chunks = self._cut(after, None, first=after.chunks, complete=True)
        after.last = True
        return self._write(after, chunks)

    def _begin_grouped(self, slices: list[Slice]) -> bool:
        assert self._decision is not None
        after = self._at.next()
        after.grouped = True
        after.waiting = slices
        return self._write(after, [], order=self._decision.order, carried=0)

    def _go_on_grouped(self) -> bool:
        """Grouped rows come in stretches until the guard has seen that they are not slower.

        Long answers are slower to make, token by token: where they come first no rates compare.
        """
        assert self._decision is not None
        ahead: Ahead | None = None
        if self._decision.order != "longest" and self._watcher.somebody_runs():
            verdict = judge(self._watcher.rates())
            if verdict == "back":
                return self._go_back()
            if verdict == "wait":
                ahead = self._watcher.missing(AFTER_S, at_least_rows=1)
                if not any(ahead):
                    return False
            else:
                self._events.write("order_kept", order=self._decision.order)
        after = self._at.next()
        chunks, after.waiting = take_planned(after.waiting, after.chunks, ahead)
        after.last = not after.waiting
        return self._write(after, chunks, order=self._decision.order)

    def _go_back(self) -> bool:
        """Grouping does not pay: what is left runs in file order, for good."""
        rates = self._watcher.rates()
        rows = np.sort(row_numbers(self._storage, self._at.waiting))
        after = self._at.next()
        after.waiting = slices_of_rows(self._watcher.ordered_parts(), rows)
        chunks = self._cut(after, None, first=after.chunks, complete=True)
        after.last = True
        self._events.write(
            "order_given_up",
            rows=len(rows),
            file_rates=[round(rate, 1) for rate in rates.in_file_order],
            grouped_rates=[round(rate, 1) for rate in rates.grouped],
        )
        return self._write(after, chunks, carried=0)

    def _write(
        self,
        after: Position,
        chunks: Sequence[Chunk],
        numbered: Numbered = _NOTHING,
        *,
        order: str = "file",
        carried: int | None = None,
        pilot_chunks: int = 0,
    ) -> bool:
        """Write the next stretch; whoever comes second takes up what the other wrote.

        Args:
            after: where the order stands behind it.
            chunks: that it cuts.
            numbered: the parts that it numbers.
            order: of the rows in its chunks.
            carried: how many of the rows that waited before still do; None: those in no chunk.
            pilot_chunks: how many of the chunks are the pilot.
        """
        left = count_rows(after.waiting)
        if carried is None:
            cut = sum(chunk.num_rows for chunk in chunks)
            carried = min(left, max(0, count_rows(self._at.waiting) - cut))
        batch = OrderBatch(
            generation=0,
            sequence=self._at.sequence,
            parts=numbered.parts,
            chunks=tuple(chunks),
            waiting=tuple(last_rows(after.waiting, left - carried)),
            duplicates=numbered.duplicates,
            rows=after.rows,
            last=after.last,
            pilot_chunks=pilot_chunks,
            carried=carried,
            order=order,
        )
        if not self._storage.commit(
            layout.order_batch(0, batch.sequence), artifacts.dump(batch)
        ):  # another worker took over while this one was thought dead
            self._restore()
            return True
        after.chunks += len(chunks)
        self._at = after
        write_rejected(self._storage, batch)
        self._watcher.read_order()
        if after.last or (after.grouped and carried == 0):
            self._tidy_up()
        return True

    def _tidy_up(self) -> None:
        """The order of the waiting rows is settled: what does not count can go."""
        self._drop_arrangement()
        remove_leftovers(self._storage, self._watcher.read_order().batches)
