"""Rows of many prepared parts written again in another order, in memory that does not grow.

The rows are dealt out to their new parts in one pass over the old ones: what does not fit in
memory is put down in runs, each of which has a stretch for every new part. Then each new part is
read together from all runs and written in its order. So every row is read and written twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batchwright.core.records import GROUPED, Slice
from batchwright.rundir import layout
from batchwright.rundir.prepared import ROW_COLUMN, record_batches
from batchwright.rundir.storage import Storage

Ints = npt.NDArray[np.int64]

# Rows held in memory before they are put down; and about so much makes one new part.
BUFFER_BYTES = 96 << 20
PART_BYTES = 32 << 20

ROWS_PER_BATCH = 2048

_PLACE = "place"


class Regrouper:
    """Writes the rows of some slices as grouped parts.

    Args:
        storage: of the run.
        slices: where the rows lie, in file order.
        places: for each row of the slices, its place in the new order, from 0.
        chunks: rows of each chunk, in the new order; a chunk lies in one part.
        scratch: an empty folder.
        attempt: makes the names of the new parts this writer's own.
    """

    def __init__(
        self,
        storage: Storage,
        slices: Sequence[Slice],
        places: Ints,
        chunks: Sequence[int],
        scratch: Path,
        attempt: str,
    ) -> None:
        self._storage = storage
        self._slices = slices
        self._places = places
        self._chunks = np.asarray(chunks, dtype=np.int64)
        self._scratch = scratch
        self._attempt = attempt
        self._borders = np.zeros(0, dtype=np.int64)
        # Tables sorted by place, and where the rows of each new part begin in them.
        self._held: list[tuple[pa.Table, list[int]]] = []
        self._held_bytes = 0
        self._runs: list[Path] = []
        self.slices: list[Slice] = []

    def steps(self) -> Iterator[None]:
        """Work a little at each step; at the end `slices` has one slice for each chunk."""
        done = 0
        for batch, rows in record_batches(self._storage, self._slices):
            table = _plain(pa.Table.from_batches([batch]))
            table = table.append_column(ROW_COLUMN, pa.array(rows))
            table = table.append_column(
                _PLACE, pa.array(self._places[done : done + len(rows)], pa.int64())
            )
            if not len(self._borders):
                self._borders = self._cut_parts(table.nbytes / table.num_rows)
            done += len(rows)
            table = _sorted(table)
            at = np.searchsorted(table.column(_PLACE).to_numpy(), self._borders)
            self._held.append((table, at.tolist()))
            self._held_bytes += table.nbytes
            if self._held_bytes > BUFFER_BYTES:
                self._put_down()
            yield
        for number in range(len(self._borders) - 1):
            self._write(number)
            yield

    def _cut_parts(self, row_bytes: float) -> Ints:
        """Where each new part begins, in places: at the first chunk after so many rows."""
        ends = np.cumsum(self._chunks)
        wanted = np.arange(1, ends[-1] * row_bytes / PART_BYTES + 1) * (PART_BYTES / row_bytes)
        at = np.unique(np.minimum(np.searchsorted(ends, wanted), len(ends) - 1))
        return np.unique(np.concatenate([[0], ends[at], [ends[-1]]])).astype(np.int64)

    def _put_down(self) -> None:
        """The held rows as a run: one record batch for each new part, in order."""
        path = self._scratch / f"run-{len(self._runs):06d}.arrow"
        schema = self._held[0][0].schema
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with (
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_file(sink, schema, options=options) as writer,
        ):
            for number in range(len(self._borders) - 1):
                pieces = self._held_rows(number)
                # A batch for a part without rows too: they are found by their number.
                writer.write_batch(
                    pa.concat_tables(pieces).combine_chunks().to_batches()[0]
                    if pieces
                    else pa.RecordBatch.from_pylist([], schema=schema)
                )
        self._runs.append(path)
        self._held, self._held_bytes = [], 0

    def _write(self, number: int) -> None:
        if self._runs and self._held:
            self._put_down()
        first, last = self._borders[number : number + 2]
        table = _sorted(pa.concat_tables(self._pieces(number)))
        table = _encoded(table.drop_columns([_PLACE]))
        file = layout.grouped_part(number, self._attempt)
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4", unify_dictionaries=True)
        with pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=ROWS_PER_BATCH)
        self._storage.publish(file, sink.getvalue().to_pybytes())
        ends = np.cumsum(self._chunks)
        inside = ends[(ends > first) & (ends <= last)] - first
        edges = [0, *inside.tolist()]
        self.slices += [
            Slice(file, start, stop, GROUPED) for start, stop in itertools.pairwise(edges)
        ]

    def _pieces(self, number: int) -> list[pa.Table]:
        if self._runs:
            return [
                pa.Table.from_batches([pa.ipc.open_file(pa.memory_map(str(run))).get_batch(number)])
                for run in self._runs
            ]
        return self._held_rows(number)

    def _held_rows(self, number: int) -> list[pa.Table]:
        """The held rows of a new part."""
        return [
            table.slice(at[number], at[number + 1] - at[number])
            for table, at in self._held
            if at[number] < at[number + 1]
        ]


def _sorted(table: pa.Table) -> pa.Table:
    places = table.column(_PLACE).to_numpy()
    order = np.argsort(places)
    return table.combine_chunks().take(pa.array(order))


def _plain(table: pa.Table) -> pa.Table:
    """Sampling as plain text: the dictionaries of several parts differ."""
    at = table.schema.get_field_index("sampling")
    return table.set_column(at, "sampling", table.column(at).cast(pa.large_string()))


def _encoded(table: pa.Table) -> pa.Table:
    at = table.schema.get_field_index("sampling")
    return table.set_column(at, "sampling", table.column(at).combine_chunks().dictionary_encode())
