"""What a run directory says: the order so far, the receipts, and the counts that follow."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from batchwright.core.errors import StorageError
from batchwright.core.records import Chunk, OrderBatch, Receipt, Slice
from batchwright.rundir import artifacts, layout
from batchwright.rundir.storage import Storage

# On a disk names of the order are tried one by one, but a gap in it shows only in a listing.
LOOKS_PER_LISTING = 100


class RunState:
    """Reads the order and the receipts of a run, each file once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._last_read = ""  # stretches of the order come one after the other
        self._looks = 0  # at the order
        self._stretches: Counter[int] = Counter()  # of the order, by generation
        self._chunks: list[Chunk] = []
        self._first_open = 0  # every chunk before it is done
        self.first_open_split = 0  # the order has all parts of those before it
        self.batches: list[OrderBatch] = []
        self.receipts: dict[str, Receipt] = {}  # by file name without ending
        self.done: set[str] = set()  # names of chunks of which every row has its receipt
        self._receipts_of: Counter[str] = Counter()  # read so far, by chunk
        self._wanted: dict[str, int] = {}  # how many there are, once the last one is read

    def refresh(self) -> None:
        """Read what is new of the order, then of the receipts."""
        self.refresh_order()
        self.refresh_receipts()

    def refresh_order(self) -> list[OrderBatch]:
        """Read the batches that have come since the last look, in order."""
        tried = self._storage.is_local and self._looks % LOOKS_PER_LISTING > 0
        self._looks += 1
        fresh = self._read_tried() if tried else self._read_listed()
        for batch in fresh:
            self._take_in(batch)
        return fresh

    def _read_listed(self) -> list[OrderBatch]:
        names = self._in_sequence(self._storage.names(layout.ORDER, after=self._last_read))
        paths = [f"{layout.ORDER}/{name}" for name in names]
        bodies = self._storage.read_each(paths)
        return [
            artifacts.load(OrderBatch, body, path) for path, body in zip(paths, bodies, strict=True)
        ]

    def _read_tried(self) -> list[OrderBatch]:
        """A disk lists a whole folder, however little of it is new, and this is done for each split."""
        fresh: list[OrderBatch] = []
        newest = max(self._stretches, default=0)
        sequence = self._stretches[newest]
        while True:
            places = [(newest, sequence), (newest + 1, 0)]
            paths = [layout.order_batch(*place) for place in places]
            found = zip(places, paths, self._storage.read_awaited(paths), strict=True)
            there = [(place, path, body) for place, path, body in found if body is not None]
            if not there:
                return fresh
            (newest, sequence), path, body = there[0]
            fresh.append(artifacts.load(OrderBatch, body, path))
            sequence += 1

    def _take_in(self, batch: OrderBatch) -> None:
        path = layout.order_batch(batch.generation, batch.sequence)
        self._last_read = path.rpartition("/")[2]
        self._stretches[batch.generation] += 1
        self._chunks += batch.chunks
        if batch.generation == 0 and batch.parts:
            self.first_open_split = batch.parts[-1].split
        self.batches.append(batch)

    def _in_sequence(self, names: list[str]) -> list[str]:
        """The names up to the first gap. A stretch that was deleted by hand must not make its rows vanish.

        A listing is no snapshot: with thousands of files it may lack one and show a later one, and
        then the next look finds both.
        """
        expected = self._stretches.copy()
        for index, name in enumerate(names):
            generation = int(name.partition("-")[0])
            wanted = layout.order_batch(generation, expected[generation])
            if f"{layout.ORDER}/{name}" != wanted:
                if self._storage.read_if_there(wanted) is None:
                    raise StorageError(
                        f"{wanted} is missing, but later ones are there",
                        "Put it back, or start again in another run directory.",
                    )
                return names[:index]
            expected[generation] += 1
        return names

    def refresh_receipts(self) -> list[Receipt]:
        """Read the receipts that have come since the last look."""
        listed = self._storage.names(layout.RECEIPTS, after=self.first_open)
        names = [name for name in listed if name.removesuffix(".json") not in self.receipts]
        paths = [f"{layout.RECEIPTS}/{name}" for name in names]
        fresh = []
        for path, body in zip(paths, self._storage.read_each(paths), strict=True):
            receipt = artifacts.load(Receipt, body, path)
            self.receipts[path.rpartition("/")[2].removesuffix(".json")] = receipt
            fresh.append(receipt)
            self._note(receipt)
        return fresh

    def _note(self, receipt: Receipt) -> None:
        """A listing is no snapshot: it may show a chunk's last receipt and lack one before it."""
        chunk = Chunk(receipt.generation, receipt.chunk, ()).name
        self._receipts_of[chunk] += 1
        if receipt.last:
            self._wanted[chunk] = receipt.sequence + 1
        if self._receipts_of[chunk] >= self._wanted.get(chunk, 1 << 62):
            self.done.add(chunk)

    @property
    def first_open(self) -> str:
        """Name of the first chunk that is not done: of those before it nothing new can come.

        With it a listing of 10,000 receipts or claims becomes one of a few.
        """
        chunks = self._chunks
        while self._first_open < len(chunks) and chunks[self._first_open].name in self.done:
            self._first_open += 1
        return chunks[min(self._first_open, len(chunks) - 1)].name if chunks else ""

    @property
    def chunks(self) -> list[Chunk]:
        """Every chunk that the order names so far."""
        return list(self._chunks)

    @property
    def pilot(self) -> list[Chunk]:
        """The chunks that are the pilot; none if the order does not begin with one."""
        return [
            chunk
            for batch in self.batches
            if batch.generation == 0
            for chunk in batch.chunks[: batch.pilot_chunks]
        ]

    @property
    def waiting(self) -> list[Slice]:
        """Rows that are numbered but in no chunk yet, in the order in which they wait."""
        waiting: list[Slice] = []
        for batch in self.batches:
            if batch.generation == 0:
                waiting = [*last_rows(waiting, batch.carried), *batch.waiting]
        return waiting

    @property
    def ordered(self) -> bool:
        """Whether all rows are numbered and in chunks."""
        return any(batch.last for batch in self.batches if batch.generation == 0)

    @property
    def generations(self) -> int:
        """How many passes there are: 1, and one more for each retry."""
        return 1 + max((batch.generation for batch in self.batches), default=0)

    @property
    def is_retried(self) -> bool:
        """Whether failed rows were ordered once more."""
        return self.generations > 1

    def busy_s(self) -> float:
        """Seconds from when the first chunk was begun until the last one was done."""
        receipts = self.receipts.values()
        begun = min((one.finished_at - one.seconds for one in receipts), default=0.0)
        return max((one.finished_at for one in receipts), default=0.0) - begun

    def _failures(self) -> dict[str, int]:
        """Failed rows by code; rows that were run again count by their newest outcome."""
        failures: Counter[str] = Counter()
        for receipt in self.receipts.values():
            failures.update(receipt.failures)
        for batch in self.batches:
            for number, replaced in enumerate(batch.replaces):
                if Chunk(batch.generation, number, ()).name in self.done:
                    failures.subtract(replaced)
        return dict(+failures)

    def _cut_before(self) -> int:
        """Answers that were cut, of rows that have a newer outcome."""
        return sum(
            cut
            for batch in self.batches
            for number, cut in enumerate(batch.replaces_cut)
            if Chunk(batch.generation, number, ()).name in self.done
        )

    def counts(self) -> Counts:
        """The sums of all that is read so far."""
        first_pass = [batch for batch in self.batches if batch.generation == 0]
        receipts = self.receipts.values()
        retried = sum(receipt.rows for receipt in receipts if receipt.generation > 0)
        num_chunks = sum(len(batch.chunks) for batch in self.batches)
        ordered_again = sum(
            chunk.num_rows for batch in self.batches if batch.generation for chunk in batch.chunks
        )
        return Counts(
            rows=first_pass[-1].rows if first_pass else 0,
            rejected=sum(batch.rejected for batch in first_pass),
            ok=sum(receipt.ok for receipt in receipts),
            failed=sum(receipt.failed for receipt in receipts) - retried,
            truncated=sum(receipt.truncated for receipt in receipts) - self._cut_before(),
            prompt_tokens=sum(receipt.prompt_tokens for receipt in receipts),
            completion_tokens=sum(receipt.completion_tokens for receipt in receipts),
            chunks=num_chunks,
            chunks_done=len(self.done),
            ordered=self.ordered,
            failures=self._failures(),
            reopened=max(0, ordered_again - retried),
            again=retried,
        )


def last_rows(slices: list[Slice], rows: int) -> list[Slice]:
    """The last so many rows of some slices."""
    kept: list[Slice] = []
    for piece in reversed(slices):
        if rows <= 0:
            break
        start = max(piece.start, piece.stop - rows)
        kept.append(Slice(piece.part, start, piece.stop, piece.first_row))
        rows -= piece.stop - start
    return kept[::-1]


@dataclass(frozen=True, slots=True)
class Counts:
    """Where a run stands.

    `rows` grows until `ordered`; `truncated` counts cut answers; `reopened` rows have a fate, and
    a retry that is not done will give them another one. `again` outcomes came of retries. Tokens are
    those that were computed, for outcomes that a retry has replaced as well.
    """

    rows: int
    rejected: int
    ok: int
    failed: int
    truncated: int
    prompt_tokens: int
    completion_tokens: int
    chunks: int
    chunks_done: int
    ordered: bool
    failures: dict[str, int] = field(default_factory=dict)
    reopened: int = 0
    again: int = 0

    @property
    def settled(self) -> int:
        """Rows whose fate is known."""
        return self.ok + self.failed + self.rejected

    @property
    def done(self) -> int:
        """Rows that nobody needs to run any more."""
        return self.settled - self.reopened

    @property
    def complete(self) -> bool:
        """Whether every row has its fate."""
        return self.ordered and self.chunks_done == self.chunks

    @property
    def share_without_answer(self) -> float:
        """Failed and rejected rows among those whose fate is known."""
        return (self.failed + self.rejected) / self.settled if self.settled else 0.0

    def as_json(self) -> dict[str, Any]:
        """The counts by the names that every command's `--json` uses."""
        return {
            "rows_in": self.rows,
            "ok": self.ok,
            "failed": self.failed,
            "rejected": self.rejected,
            "truncated": self.truncated,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }


def unfinished(counts: Counts, *, is_finished: bool) -> str:
    """Why rows of a run may be without a fate, in words; empty if none may be.

    Args:
        counts: of the run.
        is_finished: whether it says so itself: then a receipt that lacks is one that was lost.
    """
    if not counts.ordered:
        if is_finished:
            return "the run has ended, but the end of its order is gone: files below order/"
        return "not all rows of the input are numbered yet"
    if counts.complete or is_finished:
        return ""
    return f"{counts.chunks_done:,} of {counts.chunks:,} chunks are committed"


def read_state(storage: Storage) -> RunState:
    """The order and all receipts of a run."""
    state = RunState(storage)
    state.refresh()
    return state
