"""Proof that every row of the input has exactly one fate, from the parts themselves."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchwright.core.errors import StorageError
from batchwright.core.records import Receipt
from batchwright.write.ahead import PartStorage, ReadAhead
from batchwright.write.parts import Rows, name_rows
from batchwright.write.row_set import Mask, RowSet

_PROBLEMS_MAX = 10
_SHOWN_ROWS = 10


@dataclass(frozen=True, slots=True)
class Verification:
    """Counts of rows by fate, and what is wrong, in sentences (the first 10).

    `unfinished` says why rows may still come without an outcome; empty for a run that is whole.
    """

    rows_in: int
    ok: int
    failed: int
    rejected: int
    missing: int
    duplicates: int
    parts: int
    problems: list[str] = field(default_factory=list)
    unfinished: str = ""

    @property
    def adds_up(self) -> bool:
        """Whether nothing is lost or double of what is committed; no proof of what is not."""
        fates = self.ok + self.failed + self.rejected
        return fates + self.missing == self.rows_in and not (self.duplicates or self.problems)

    @property
    def passed(self) -> bool:
        """Whether rows in and rows out add up and every part is what its receipt says."""
        return self.adds_up and not (self.missing or self.unfinished)


class _Tally:
    """What has been seen so far."""

    def __init__(self, total_rows: int) -> None:
        self.total_rows = total_rows
        self.seen = RowSet(total_rows)
        self.failed = RowSet(total_rows)
        self.redone = RowSet(0)
        self.rejected = 0
        self.duplicates = 0
        self.problems: list[str] = []
        self.num_problems = 0

    def complain(self, problem: str) -> None:
        self.num_problems += 1
        if self.num_problems <= _PROBLEMS_MAX:
            self.problems.append(problem)

    def complain_of_rows(self, part: str, rows: Rows, what: str) -> None:
        if len(rows):
            self.complain(f"{part}: {what}: rows {name_rows(rows, _SHOWN_ROWS)}.")


def verify_parts(
    *,
    receipts: Sequence[Receipt],
    total_rows: int,
    rejected_rows: Rows,
    storage: PartStorage,
    unfinished: str = "",
) -> Verification:
    """Read every part that a receipt names and count each row of the input.

    Args:
        receipts: all generations, in any order.
        total_rows: rows of the input.
        rejected_rows: numbers of the rejected rows, int64, in any order.
        storage: where the parts are.
        unfinished: why rows may be without an outcome yet; then they are counted and no problem.
    """
    tally = _Tally(total_rows)
    _take_rejected(tally, rejected_rows)
    _find_double_receipts(tally, receipts)
    generation = 0
    in_order = sorted(receipts, key=lambda each: (each.generation, each.chunk))
    ahead = ReadAhead(storage, [receipt.file for receipt in in_order])
    for receipt in in_order:
        if receipt.generation != generation:
            generation = receipt.generation
            tally.redone = RowSet(total_rows)
        _take_part(tally, receipt, ahead)
    return _conclude(tally, len(receipts), unfinished)


def _take_rejected(tally: _Tally, rejected: Rows) -> None:
    rows = _known(tally, "rejected rows", np.sort(rejected.astype(np.int64)))
    unique = _once(tally, "rejected rows", rows)
    tally.seen.add(unique)
    tally.rejected = len(unique)


def _find_double_receipts(tally: _Tally, receipts: Iterable[Receipt]) -> None:
    chunks = Counter((one.generation, one.chunk) for one in receipts if one.last)
    for (generation, chunk), count in chunks.items():
        if count > 1:
            tally.complain(f"Chunk {generation}-{chunk} has {count} last receipts.")


def _take_part(tally: _Tally, receipt: Receipt, storage: PartStorage) -> None:
    table = _read(tally, receipt, storage)
    if table is None:
        return
    rows = table.column("row").to_numpy()
    failed = pc.equal(table.column("status"), "failed").to_numpy()
    _compare_counts(tally, receipt, rows, failed)
    unique = _once(tally, receipt.file, _known(tally, receipt.file, np.sort(rows)))
    count = _count_first if receipt.generation == 0 else _count_again
    count(tally, receipt.file, unique, np.isin(unique, rows[failed]))


def _read(tally: _Tally, receipt: Receipt, storage: PartStorage) -> pa.Table | None:
    try:
        data = storage.read(receipt.file)
    except (StorageError, OSError) as error:
        tally.complain(f"{receipt.file}: cannot be read: {error}.")
        return None
    if hashlib.sha256(data).hexdigest() != receipt.sha256:
        tally.complain(
            f"{receipt.file}: is not the file that its receipt names (sha256 differs): delete all receipts of that chunk and run again."
        )
    try:
        return pq.read_table(pa.BufferReader(data), columns=["row", "status"])
    except (OSError, pa.ArrowException) as error:
        tally.complain(f"{receipt.file}: is not a readable part: {error}.")
        return None


def _compare_counts(tally: _Tally, receipt: Receipt, rows: Rows, failed: Mask) -> None:
    num_failed = int(failed.sum())
    found = {"rows": len(rows), "ok": len(rows) - num_failed, "failed": num_failed}
    if len(rows):
        found |= {"first_row": int(rows.min()), "last_row": int(rows.max())}
    for name, value in found.items():
        said = getattr(receipt, name)
        if said != value:
            tally.complain(f"{receipt.file}: {name} is {value}, but the receipt says {said}.")


def _known(tally: _Tally, part: str, rows: Rows) -> Rows:
    inside = (rows >= 0) & (rows < tally.total_rows)
    tally.complain_of_rows(part, rows[~inside], "are not rows of the input")
    known: Rows = rows[inside]
    return known


def _once(tally: _Tally, part: str, rows: Rows) -> Rows:
    first = np.append(True, rows[1:] != rows[:-1])[: len(rows)]
    tally.complain_of_rows(part, rows[~first], "are there more than once")
    tally.duplicates += int((~first).sum())
    unique: Rows = rows[first]
    return unique


def _count_first(tally: _Tally, part: str, rows: Rows, failed: Mask) -> None:
    again = tally.seen.has(rows)
    tally.complain_of_rows(part, rows[again], "are rejected or in another part as well")
    tally.duplicates += int(again.sum())
    tally.seen.add(rows)
    tally.failed.add(rows[failed & ~again])


def _count_again(tally: _Tally, part: str, rows: Rows, failed: Mask) -> None:
    redone = tally.redone.has(rows)
    tally.complain_of_rows(part, rows[redone], "are in another part of this generation as well")
    stray = ~redone & ~tally.failed.has(rows)
    tally.complain_of_rows(part, rows[stray], "were run again although they had not failed")
    tally.duplicates += int(redone.sum() + stray.sum())
    tally.redone.add(rows)
    tally.failed.remove(rows[~failed & ~redone & ~stray])


def _conclude(tally: _Tally, num_parts: int, unfinished: str) -> Verification:
    seen = tally.seen.count()
    missing = tally.total_rows - seen
    failed = tally.failed.count()
    if missing and not unfinished:
        shown = tally.seen.first_absent(tally.total_rows, _SHOWN_ROWS)
        names = ", ".join(str(row) for row in shown.tolist())
        more = f" and {missing - len(shown)} more" if missing > len(shown) else ""
        tally.complain(f"{missing} rows have no outcome: rows {names}{more}.")
    hidden = tally.num_problems - len(tally.problems)
    more_problems = [f"There are {hidden} more problems."] if hidden else []
    return Verification(
        rows_in=tally.total_rows,
        ok=seen - failed - tally.rejected,
        failed=failed,
        rejected=tally.rejected,
        missing=missing,
        duplicates=tally.duplicates,
        parts=num_parts,
        problems=[*tally.problems, *more_problems],
        unfinished=unfinished,
    )
