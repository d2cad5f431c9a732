"""Chunks in work, and how their outcomes become parts that count."""

from __future__ import annotations

import hashlib
import logging
import uuid
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from batchwright.core.forced_calls import with_forced_calls
from batchwright.core.latency import count_times
from batchwright.core.media import find_inline, has_media
from batchwright.core.outcomes import Outcome
from batchwright.core.ports import Clock, Tokenizer
from batchwright.core.records import Chunk, Receipt, Request
from batchwright.core.schemas import INPUT_COLUMN
from batchwright.core.structured import constraint_in
from batchwright.core.tasks import GENERATE, TaskSettings
from batchwright.rundir import artifacts, layout
from batchwright.rundir.meters import CommitMeter
from batchwright.rundir.output_parts import read_output_part
from batchwright.rundir.prepared import (
    make_requests,
    read_slices,
    with_row_ids,
)
from batchwright.rundir.storage import Storage
from batchwright.rundir.timings import Timings
from batchwright.working.finishing import Finisher, Reader, spell_tokens
from batchwright.write.parts import build_part, encode_part, summarise

# A chunk of which nothing has come for so long, and for this share of its age, waits for a few
# slow rows: the others are committed without them, but not more often than this.
STALL_S = 2.0
STALL_SHARE = 0.1
SAVE_EVERY_S = 30.0

# A receipt names so many.
SLOWEST_ROWS = 3

# A commit takes a fraction of a second, as a rule.
SLOW_COMMIT_S = 10.0

_log = logging.getLogger("batchwright.write")


@dataclass(slots=True)
class ActiveChunk:
    """A claimed chunk: the rows that still have to go in, and the outcomes that came out.

    Attributes:
        rows: those that had no receipt when it was claimed.
        requests: of these rows, without those that take the answer of another.
        copies: for a row that is computed, the rows with the very same request.
        outcomes: that have come and are in nobody's part yet.
        unfinished: rows without an outcome.
        sequence: number of its next receipt.
        fed: whether every row has gone into the engine.
        closed: whether its last receipt is there, whoever wrote it.
        times_s: of each row that was computed, from when the feeder had it to its outcome.
    """

    chunk: Chunk
    prepared: pa.Table
    rows: npt.NDArray[np.int64]
    requests: Iterator[Request]
    started_at: float
    unfinished: int
    sequence: int
    copies: dict[int, list[int]] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    fed: bool = False
    closed: bool = False
    last_outcome_at: float = float("inf")
    saved_at: float = float("-inf")
    times_s: dict[int, float] = field(default_factory=dict)

    def find_input(self, row: int, at: Sequence[str | int]) -> Any:
        """What stands at a place of a row's own input, as it was read.

        Raises:
            LookupError, TypeError, ValueError: there is nothing.
        """
        index = int(np.flatnonzero(self.rows == row)[0])
        kept = self.prepared.column(INPUT_COLUMN)[index]
        if isinstance(kept, pa.StructScalar):
            return find_inline(kept[str(at[0])].as_py(), at[1:])
        return find_inline(kept.as_py(), at)

    def take_in(self, outcome: Outcome, prompt_tokens: int, now: float) -> list[Outcome]:
        """Keep an outcome until it is committed; returns it and those of the row's copies.

        A copy's whole prompt counts as cached. Failures are copied too: the same request would be
        refused, kill the engine or take too long once more. `retry` runs them all again.
        """
        if outcome.more is not None and outcome.more.prompt_tokens is not None:
            prompt_tokens = outcome.more.prompt_tokens
        cached = prompt_tokens if outcome.error_code is None else 0
        found = [outcome]
        for row in self.copies.get(outcome.row, ()):
            found.append(outcome._replace(row=row, cached_tokens=cached))
        self.outcomes += found
        self.unfinished -= len(found)
        self.last_outcome_at = now
        return found

    def is_stalled(self, now: float) -> bool:
        """Whether finished rows wait for a few slow ones."""
        if not (self.fed and self.outcomes) or now - self.saved_at < SAVE_EVERY_S:
            return False
        return now - self.last_outcome_at > max(STALL_S, STALL_SHARE * (now - self.started_at))

    def hand_over(self, now: float) -> list[Outcome]:
        """The outcomes for a commit; later ones go into the next."""
        outcomes, self.outcomes = self.outcomes, []
        self.saved_at = now
        return outcomes


class Committer:
    """Loads chunks, and writes parts and receipts; its commits are made by one thread."""

    def __init__(
        self,
        storage: Storage,
        worker: str,
        clock: Clock,
        tokenizer: Tokenizer,
        timings: Timings | None,
        task: TaskSettings = GENERATE,
        *,
        repeat_once: bool = False,
        reader: Reader | None = None,
    ) -> None:
        self._storage = storage
        self._worker = worker
        self._clock = clock
        self._tokenizer = tokenizer
        self._timings = timings
        self._task = task
        self._repeat_once = repeat_once
        self._finisher = Finisher(tokenizer, reader)
        self.meter = CommitMeter()

    def load(self, chunk: Chunk) -> ActiveChunk:
        """The rows of a chunk that have no receipt yet, ready to be fed."""
        prepared, rows = read_slices(self._storage, chunk.slices)
        sequence = 0
        closed = False
        while (receipt := self._receipt(chunk, sequence)) is not None:
            left = ~np.isin(rows, self._rows_of(receipt))
            prepared, rows = prepared.filter(pa.array(left)), rows[left]
            sequence += 1
            closed = receipt.last
        requests = make_requests(prepared, rows)
        copies: dict[int, list[int]] = {}
        if self._repeat_once:
            requests, copies = set_copies_apart(requests)
        return ActiveChunk(
            chunk=chunk,
            prepared=prepared,
            rows=rows,
            requests=requests,
            started_at=self._clock.monotonic(),
            unfinished=len(rows),
            sequence=sequence,
            copies=copies,
            closed=closed,
        )

    def commit(self, active: ActiveChunk, outcomes: Sequence[Outcome], *, last: bool) -> bool:
        """Write a part, then the receipt that makes it count.

        Another worker may have taken the chunk for abandoned and be committing it too. Whoever
        comes second to a receipt leaves out the rows that it covers, and tries the next one.

        Returns:
            False if another worker has closed the chunk.
        """
        begun = self._clock.monotonic()
        try:
            return self._commit(active, outcomes, last=last)
        finally:
            self.meter.seconds += self._clock.monotonic() - begun

    def _commit(self, active: ActiveChunk, outcomes: Sequence[Outcome], *, last: bool) -> bool:
        if last and self._timings is not None:
            self._timings.write(active.chunk, active.rows.tolist())
        while not active.closed:
            if self._write(active, outcomes, last=last):
                active.sequence += 1
                active.closed = last
                return True
            other = self._receipt(active.chunk, active.sequence)
            active.sequence += 1
            assert other is not None, "it was there a moment ago, and receipts stay"
            active.closed = other.last
            if other.last:
                return False
            covered = set(self._rows_of(other).tolist())
            outcomes = [outcome for outcome in outcomes if outcome.row not in covered]
            if not outcomes and not last:
                return True
        return False

    def _write(self, active: ActiveChunk, outcomes: Sequence[Outcome], *, last: bool) -> bool:
        """Write one part and its receipt; nothing is left if that receipt is there already."""
        began = self._clock.monotonic()
        table = self.part_of(active, outcomes)
        data = encode_part(table)
        name = active.chunk.name
        file = layout.output_part(name, uuid.uuid4().hex[:8])
        self._storage.publish(file, data)
        receipt = Receipt(
            generation=active.chunk.generation,
            chunk=active.chunk.number,
            file=file,
            sha256=hashlib.sha256(data).hexdigest(),
            worker=self._worker,
            seconds=round(self._clock.monotonic() - active.started_at, 3),
            finished_at=round(self._clock.now(), 3),
            sequence=active.sequence,
            last=last,
            **_times(active, outcomes),
            **summarise(table),
        )
        path = layout.receipt(name, active.sequence)
        if self._storage.commit(path, artifacts.dump(receipt)):
            self.meter.add_part(len(data), table.num_rows)
            self._tell(receipt, name, len(data), self._clock.monotonic() - began)
            return True
        self._storage.delete(file)
        return False

    @staticmethod
    def _tell(receipt: Receipt, chunk: str, size_bytes: int, seconds: float) -> None:
        level = logging.WARNING if seconds > SLOW_COMMIT_S else logging.DEBUG
        told = {"chunk": chunk, "rows": receipt.rows, "failed": receipt.failed,
                "bytes": size_bytes, "seconds": round(seconds, 2)}  # fmt: skip
        _log.log(level, "part committed", extra={"figures": told})

    def _receipt(self, chunk: Chunk, sequence: int) -> Receipt | None:
        path = layout.receipt(chunk.name, sequence)
        raw = self._storage.read_if_there(path)
        return None if raw is None else artifacts.load(Receipt, raw, path)

    def _rows_of(self, receipt: Receipt) -> npt.NDArray[np.int64]:
        part = read_output_part(self._storage, receipt.file, ["row"])
        return np.asarray(part.column("row").to_numpy())

    def part_of(self, active: ActiveChunk, outcomes: Sequence[Outcome]) -> pa.Table:
        """Outcomes to the rows of an output part."""
        place = {row: index for index, row in enumerate(active.rows.tolist())}
        places = np.array([place[outcome.row] for outcome in outcomes], dtype=np.int64)
        prepared, rows = active.prepared.take(pa.array(places)), active.rows[places]
        own = with_row_ids(prepared, rows)
        if not self._task.makes_text:
            return build_part(own, rows, outcomes, task=self._task)
        requests = list(make_requests(prepared, rows))
        finished = [
            with_forced_calls(outcome, request.extras)
            for outcome, request in zip(self._finish(outcomes, requests), requests, strict=True)
        ]
        return build_part(own, rows, finished, spell_tokens(self._tokenizer, finished))

    def _finish(self, outcomes: Sequence[Outcome], requests: Sequence[Request]) -> list[Outcome]:
        """The outcomes with their texts; those of rows with structured output have them already.

        They were read before they were checked, and to read a text twice would take more out of it.
        """
        plain = [n for n, one in enumerate(requests) if constraint_in(one.sampling) is None]
        finished = list(outcomes)
        read = self._finisher.finish([outcomes[n] for n in plain], [requests[n] for n in plain])
        for place, outcome in zip(plain, read, strict=True):
            finished[place] = outcome
        return finished


def _times(active: ActiveChunk, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What a receipt says of how long its rows took, by the names of its fields."""
    timed = [(one, active.times_s[one.row]) for one in outcomes if one.row in active.times_s]
    slowest = sorted(timed, key=lambda item: -item[1])[:SLOWEST_ROWS]
    return {
        "times": count_times(seconds for _, seconds in timed),
        "slowest": tuple((one.row, round(seconds, 3)) for one, seconds in slowest),
        # Both count from when the feeder had the row, whatever became of it on its way.
        "first_tokens": count_times(
            seconds - one.generating_s for one, seconds in timed if one.generating_s is not None
        ),
    }


def set_copies_apart(
    requests: Iterable[Request],
) -> tuple[Iterator[Request], dict[int, list[int]]]:
    """Requests without those that repeat an earlier one, and the rows of these by the row they repeat.

    Only where the answer follows from the request alone: greedy sampling, and one answer per row.
    """
    firsts: list[Request] = []
    copies: dict[int, list[int]] = {}
    known: dict[tuple[bytes, int, str, str], int] = {}
    for request in requests:
        first = request.row
        # Rows with media may have the same words and other images: they are not compared.
        if is_greedy(request.sampling) and not has_media(request.extras):
            ids = array("i", request.token_ids).tobytes()
            asked = (ids, request.max_tokens, request.sampling, request.extras)
            first = known.setdefault(asked, request.row)
        if first == request.row:
            firsts.append(request)
        else:
            copies.setdefault(first, []).append(request.row)
    return iter(firsts), copies


@lru_cache(maxsize=4096)
def is_greedy(sampling: str) -> bool:
    """Whether the likeliest token is taken each time, once."""
    fields = orjson.loads(sampling or "{}")
    return fields.get("temperature") == 0 and (fields.get("n") or 1) == 1
