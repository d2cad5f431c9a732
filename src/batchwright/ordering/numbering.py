"""Number the rows of prepared parts, and reject repeated ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from batchwright.core.records import (
    Duplicate,
    OrderBatch,
    OrderedPart,
    PreparedReceipt,
    Slice,
    Split,
)
from batchwright.plan.chunks import valid_slices
from batchwright.plan.seen import SeenIds
from batchwright.rundir import layout
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.prepared import (
    ordered_receipt,
    prepared_receipt,
    read_columns,
)
from batchwright.rundir.rejected import rejected_tables
from batchwright.rundir.storage import Storage


@dataclass(slots=True)
class Position:
    """Where the order stands.

    Attributes:
        split: of the next prepared part.
        part: of the next prepared part.
        rows: numbered so far.
        chunks: cut so far.
        sequence: number of the next stretch.
        file_lines: physical lines of the current file before the next split.
        waiting: rows that are in no chunk yet.
        grouped: whether the waiting rows were put in another order.
        last: whether the order is complete.
    """

    split: int = 0
    part: int = 0
    rows: int = 0
    chunks: int = 0
    sequence: int = 0
    file_lines: int = 0
    waiting: list[Slice] = field(default_factory=list)
    grouped: bool = False
    last: bool = False

    def next(self) -> Position:
        """A copy for the next stretch."""
        return replace(self, sequence=self.sequence + 1, waiting=list(self.waiting))


@dataclass(slots=True)
class _Pool:
    """Receipts of prepared parts that come one after the other; each is read once.

    Attributes:
        split: of the part behind them.
        part: of the part behind them.
        rows: numbered before them, and theirs.
        prompt_tokens: of their rows.
        receipts: in input order.
    """

    split: int
    part: int
    rows: int
    prompt_tokens: int = 0
    receipts: list[PreparedReceipt] = field(default_factory=list)


class Numbered(NamedTuple):
    """Prepared parts with their places in the input, and the repeated ids among their rows."""

    parts: tuple[OrderedPart, ...]
    duplicates: tuple[Duplicate, ...]


class Numbering:
    """Gives the rows of a run their numbers, part after part.

    Args:
        storage: of the run.
        manifest: of the run.
    """

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self._storage = storage
        self._splits = manifest.splits
        source = manifest.job["input"]
        self._limit: int | None = source["limit"]
        self._pool: _Pool | None = None
        self._seen = SeenIds()
        self._unique_ids = bool(manifest.id_column) and source["duplicate_ids"] == "reject"

    def is_complete(self, at: Position) -> bool:
        """Whether every row has its number."""
        return at.split >= len(self._splits) or at.rows == self._limit

    def forget(self) -> None:
        """Start again from the first row."""
        self._seen = SeenIds()
        self._pool = None

    def replay(self, batch: OrderBatch, at: Position) -> None:
        """Step over what another has numbered."""
        for part in batch.parts:
            self._repeats(part.file, part.first_row, part.rows)
            _step_over(at, ordered_receipt(self._storage, part), self._splits)
        at.rows = batch.rows

    def ready_parts(self, at: Position, most: int) -> list[PreparedReceipt]:
        """The prepared parts that come next, as far as they are there; at most so many."""
        pool = _Pool(at.split, at.part, at.rows)
        self._fill(pool, most)
        return pool.receipts

    def parts_for_pilot(
        self, at: Position, is_enough: Callable[[int, int], bool]
    ) -> list[PreparedReceipt]:
        """All prepared parts that the pilot is chosen from, once these are enough; else none.

        Args:
            at: where the order stands, the same each time.
            is_enough: whether so many rows with so many prompt tokens are, while more may come.
        """
        pool = self._pool = self._pool or _Pool(at.split, at.part, at.rows)
        self._fill(pool)
        complete = pool.split >= len(self._splits) or pool.rows == self._limit
        if not pool.receipts or not (complete or is_enough(pool.rows, pool.prompt_tokens)):
            return []
        return pool.receipts

    def _fill(self, pool: _Pool, most: int | None = None) -> None:
        """Read the receipts of the next parts, as far as they are there; until there are `most`."""
        while pool.split < len(self._splits) and pool.rows != self._limit:
            if len(pool.receipts) == most:
                return
            receipt = prepared_receipt(self._storage, pool.split, pool.part)
            if receipt is None:
                return
            pool.receipts.append(receipt)
            pool.rows += receipt.rows
            if self._limit is not None:
                pool.rows = min(pool.rows, self._limit)
            pool.prompt_tokens += receipt.prompt_tokens
            at_end = receipt.last
            pool.split, pool.part = (pool.split + 1, 0) if at_end else (pool.split, pool.part + 1)

    def number(self, receipts: list[PreparedReceipt], after: Position) -> Numbered:
        """Number the rows of some parts, and let those that are valid wait.

        Args:
            receipts: of the next parts.
            after: where the order stands; it is moved behind them.
        """
        parts: list[OrderedPart] = []
        duplicates: list[Duplicate] = []
        for receipt in receipts:
            rows = receipt.rows
            if self._limit is not None:
                rows = min(rows, self._limit - after.rows)
            ordered, slices, repeated = self._order_part(receipt, after, rows)
            parts.append(ordered)
            duplicates += repeated
            after.waiting += slices
            after.rows += rows
            _step_over(after, receipt, self._splits)
            if after.rows == self._limit:
                break
        return Numbered(tuple(parts), tuple(duplicates))

    def _order_part(
        self, receipt: PreparedReceipt, after: Position, rows: int
    ) -> tuple[OrderedPart, list[Slice], list[Duplicate]]:
        valid = np.ones(rows, dtype=bool)
        if receipt.rejected:
            codes = read_columns(self._storage, receipt.file, ["error_code"]).column(0)
            valid &= codes.is_null().to_numpy()[:rows]
        rejected = rows - int(valid.sum())
        duplicates = self._repeats(receipt.file, after.rows, rows)
        for duplicate in duplicates:
            valid[duplicate.index] = False
        ordered = OrderedPart(
            file=receipt.file,
            split=receipt.split,
            part=receipt.part,
            path=self._splits[receipt.split].path,
            first_row=after.rows,
            first_line=after.file_lines,
            rows=rows,
            rejected=rejected,
        )
        return ordered, valid_slices(receipt.file, after.rows, valid), duplicates

    def _repeats(self, file: str, first_row: int, rows: int) -> list[Duplicate]:
        """Rows whose id was seen before. Rejected rows neither count nor are counted."""
        if not self._unique_ids:
            return []
        table = read_columns(self._storage, file, ["id", "error_code"]).slice(0, rows)
        usable = np.flatnonzero(table.column("error_code").is_null().to_numpy())
        ids = table.column("id").take(pa.array(usable)).to_pylist()
        return [
            Duplicate(file, int(usable[index]), int(usable[index]) + first_row, of_row)
            for index, of_row in self._seen.add(ids, usable + first_row)
        ]


def write_rejected(storage: Storage, batch: OrderBatch) -> None:
    """Write the rejected rows of a stretch of the order, for people."""
    if batch.rejected == 0:
        return
    lines = []
    for table, paths in rejected_tables(storage, [batch]):
        for record, path in zip(table.to_pylist(), paths, strict=True):
            line = {
                "row": record["row"],
                "id": record["id"],
                "code": record["error_code"],
                "message": record["error"],
                "file": path,
                "line": record["line"],
                "input": _for_people(record["input"]),
            }
            lines.append(orjson.dumps(line, default=str))
    storage.put(layout.rejected_batch(batch.sequence), b"\n".join(lines) + b"\n")


def _for_people(value: Any) -> Any:
    """JSON input as it was, shortened: the file is for looking at, not for feeding back."""
    if isinstance(value, str) and len(value) > 2000:
        return value[:2000] + "…"
    return value


def _step_over(at: Position, receipt: PreparedReceipt, splits: tuple[Split, ...]) -> None:
    """Move the position behind a prepared part."""
    if not receipt.last:
        at.split, at.part = receipt.split, receipt.part + 1
        return
    at.split, at.part = receipt.split + 1, 0
    same_file = at.split < len(splits) and splits[at.split].path == splits[receipt.split].path
    if not same_file:
        at.file_lines = 0
    elif splits[receipt.split].format != "parquet":  # whose rows are numbered within the file
        at.file_lines += receipt.num_lines
