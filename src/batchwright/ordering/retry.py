"""Order the failed rows of a finished run once more: a new generation of chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from batchwright.core.records import Chunk, OrderBatch
from batchwright.plan.chunks import cut_chunks, slices_of_rows
from batchwright.rundir import artifacts, layout
from batchwright.rundir.output_parts import read_output_part
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage

_READ = ("row", "status", "error_code", "finish_reason")


class _Failed(NamedTuple):
    """The newest outcome of a row that failed: its code, and whether its answer was cut."""

    code: str
    cut: bool


def order_failed_rows(
    storage: Storage, state: RunState, chunk_rows: int | None, codes: Sequence[str]
) -> int:
    """Make a new generation of chunks from the rows whose newest outcome is a failure.

    Args:
        storage: the run.
        state: all of its order and receipts.
        chunk_rows: rows per chunk; None for the growing default.
        codes: only failures with one of these codes; all if empty.

    Returns:
        How many rows will run again; 0 makes no new generation.
    """
    failed = _failed_rows(storage, state, set(codes))
    if not failed:
        return 0
    rows = np.asarray(sorted(failed), dtype=np.int64)
    parts = [part for batch in state.batches for part in batch.parts]
    slices = slices_of_rows(parts, rows)
    generation = state.generations
    chunks, _ = cut_chunks(slices, 0, chunk_rows, last=True, generation=generation)
    batch = OrderBatch(
        generation=generation,
        sequence=0,
        parts=(),
        chunks=tuple(chunks),
        waiting=(),
        duplicates=(),
        rows=0,
        last=True,
        replaces=tuple(dict(Counter(one.code for one in _of(chunk, failed))) for chunk in chunks),
        replaces_cut=tuple(sum(one.cut for one in _of(chunk, failed)) for chunk in chunks),
    )
    # From here on the results are those of an earlier pass: whoever writes them again says so.
    storage.delete(layout.SUCCESS)
    storage.commit(layout.order_batch(generation, 0), artifacts.dump(batch))
    storage.delete(layout.SUCCESS)  # written by who saw the run complete a moment ago
    return len(rows)


def _of(chunk: Chunk, failed: dict[int, _Failed]) -> Iterator[_Failed]:
    """What became of the rows of a chunk before."""
    for piece in chunk.slices:
        for index in range(piece.start, piece.stop):
            yield failed[piece.first_row + index]


def _failed_rows(storage: Storage, state: RunState, codes: set[str]) -> dict[int, _Failed]:
    """The rows whose newest outcome is a failure."""
    failed: dict[int, _Failed] = {}
    for receipt in sorted(state.receipts.values(), key=lambda one: one.generation):
        if receipt.failed == 0 and receipt.generation == 0:
            continue
        table = read_output_part(storage, receipt.file, _READ)
        for record in table.to_pylist():
            failed.pop(record["row"], None)
            if record["status"] == "failed":
                cut = record.get("finish_reason") == "length"
                failed[record["row"]] = _Failed(record["error_code"], cut)
    return {row: one for row, one in failed.items() if not codes or one.code in codes}
