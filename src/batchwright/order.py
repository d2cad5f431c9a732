"""Put prepared parts in order: number the rows, reject repeated ids, cut chunks.

The order is a function of the prepared parts alone, taken one after the other, so any worker may
go on where another stopped: each stretch is one file, created once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from batchwright.core.records import (
    Chunk,
    Duplicate,
    OrderBatch,
    OrderedPart,
    PreparedReceipt,
    Slice,
    Split,
)
from batchwright.pilot.sample import choose_rows
from batchwright.plan.chunks import cut_chunks, divide, valid_slices
from batchwright.plan.seen import SeenIds
from batchwright.rundir import artifacts, layout
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.prepared import (
    ordered_receipt,
    prepared_receipt,
    prompt_lengths,
    read_columns,
)
from batchwright.rundir.rejected import rejected_tables
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage

PARTS_PER_BATCH = 16

PILOT_SEED = 0
PILOT_CHUNK_ROWS = 250


@dataclass(slots=True)
class _Position:
    """Where the order stands."""

    split: int = 0
    part: int = 0
    rows: int = 0
    chunks: int = 0
    sequence: int = 0
    file_lines: int = 0
    waiting: list[Slice] = field(default_factory=list)
    last: bool = False


class Sequencer:
    """Writes the order of a run, stretch by stretch, as prepared parts become ready."""

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self._storage = storage
        self._splits = manifest.splits
        run = manifest.job["run"]
        source = manifest.job["input"]
        self._chunk_rows: int | None = run["chunk_rows"]
        self._pilot_rows = manifest.pilot_rows
        self._pilot_pool = manifest.pilot_pool
        self._limit: int | None = source["limit"]
        self._seen = SeenIds()
        self._unique_ids = bool(manifest.id_column) and source["duplicate_ids"] == "reject"
        self._at = _Position()
        self._restore()

    @property
    def finished(self) -> bool:
        """Whether the order is complete."""
        return self._at.last

    def advance(self) -> bool:
        """Write the next stretch, if parts are ready for it; False if there was nothing to do."""
        receipts = self._ready_parts()
        done = self._at.split >= len(self._splits)
        if self._at.last or not (receipts or done):
            return False
        batch, position = self._make_batch(receipts)
        path = layout.order_batch(0, batch.sequence)
        if self._storage.commit(path, artifacts.dump(batch)):
            self._at = position
            self._write_rejected(batch)
        else:  # another worker took over while this one was thought dead
            self._seen = SeenIds()
            self._restore()
        return True

    def _restore(self) -> None:
        state = RunState(self._storage)
        state.refresh_order()
        self._at = _Position()
        written = set(self._storage.names(layout.REJECTED))
        for batch in state.batches:
            if batch.generation == 0:
                self._replay(batch)
                # Whoever ordered it may have died before it could write this.
                if layout.rejected_batch(batch.sequence).rpartition("/")[2] not in written:
                    self._write_rejected(batch)

    def _replay(self, batch: OrderBatch) -> None:
        at = self._at
        for part in batch.parts:
            self._repeats(part.file, part.first_row, part.rows)
            _step_over(at, ordered_receipt(self._storage, part), self._splits)
        at.rows = batch.rows
        at.chunks += len(batch.chunks)
        at.waiting = list(batch.waiting)
        at.sequence = batch.sequence + 1
        at.last = batch.last

    def _ready_parts(self) -> list[PreparedReceipt]:
        receipts: list[PreparedReceipt] = []
        split, part = self._at.split, self._at.part
        rows = self._at.rows
        pilot = self._begins_with_pilot
        while split < len(self._splits) and rows != self._limit:
            # The pilot's rows are chosen from many, so the order begins when those are prepared.
            if pilot and 0 < self._pilot_pool <= rows:
                break
            if not pilot and len(receipts) == PARTS_PER_BATCH:
                break
            receipt = prepared_receipt(self._storage, split, part)
            if receipt is None:
                return [] if pilot else receipts
            receipts.append(receipt)
            rows = min(rows + receipt.rows, self._limit or rows + receipt.rows)
            split, part = (split + 1, 0) if receipt.last else (split, part + 1)
        return receipts

    @property
    def _begins_with_pilot(self) -> bool:
        return self._pilot_rows > 0 and self._at.sequence == 0

    def _make_batch(self, receipts: list[PreparedReceipt]) -> tuple[OrderBatch, _Position]:
        at = self._at
        after = _Position(
            at.split, at.part, at.rows, at.chunks, at.sequence + 1, at.file_lines, list(at.waiting)
        )
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
        after.last = after.split >= len(self._splits) or after.rows == self._limit
        pilot: list[Chunk] = []
        if self._begins_with_pilot:
            pilot, after.waiting = self._choose_pilot(after.waiting)
        chunks, after.waiting = cut_chunks(
            after.waiting, at.chunks + len(pilot), self._chunk_rows, last=after.last
        )
        chunks = pilot + chunks
        after.chunks += len(chunks)
        batch = OrderBatch(
            generation=0,
            sequence=at.sequence,
            parts=tuple(parts),
            chunks=tuple(chunks),
            waiting=tuple(after.waiting),
            duplicates=tuple(duplicates),
            rows=after.rows,
            last=after.last,
            pilot_chunks=len(pilot),
        )
        return batch, after

    def _choose_pilot(self, waiting: list[Slice]) -> tuple[list[Chunk], list[Slice]]:
        """Rows of every prompt length, as the first chunks; and the rows that are left."""
        lengths = prompt_lengths(self._storage, waiting)
        chosen = np.zeros(len(lengths), dtype=bool)
        chosen[choose_rows(lengths, self._pilot_rows, PILOT_SEED).rows] = True
        picked, others = divide(waiting, chosen)
        chunks, _ = cut_chunks(picked, 0, PILOT_CHUNK_ROWS, last=True)
        return chunks, others

    def _order_part(
        self, receipt: PreparedReceipt, after: _Position, rows: int
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

    def _write_rejected(self, batch: OrderBatch) -> None:
        if batch.rejected == 0:
            return
        lines = []
        for table, part in rejected_tables(self._storage, [batch]):
            for record in table.to_pylist():
                line = {
                    "row": record["row"],
                    "id": record["id"],
                    "code": record["error_code"],
                    "message": record["error"],
                    "file": part.path,
                    "line": record["line"],
                    "input": _for_people(record["input"]),
                }
                lines.append(orjson.dumps(line, default=str))
        self._storage.put(layout.rejected_batch(batch.sequence), b"\n".join(lines) + b"\n")


def _for_people(value: Any) -> Any:
    """JSON input as it was, shortened: the file is for looking at, not for feeding back."""
    if isinstance(value, str) and len(value) > 2000:
        return value[:2000] + "…"
    return value


def _step_over(at: _Position, receipt: PreparedReceipt, splits: tuple[Split, ...]) -> None:
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
