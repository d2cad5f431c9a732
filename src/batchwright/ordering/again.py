"""Order the failed rows of a finished run once more: a new generation of chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from batchwright.core.records import Chunk, OrderBatch
from batchwright.plan.chunks import cut_chunks, slices_of_rows
from batchwright.rundir import artifacts, layout
from batchwright.rundir.output_parts import read_output_part
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage


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
        replaces=tuple(_codes_of(chunk, failed) for chunk in chunks),
    )
    # From here on the results are those of an earlier pass: whoever writes them again says so.
    storage.delete(layout.SUCCESS)
    storage.commit(layout.order_batch(generation, 0), artifacts.dump(batch))
    storage.delete(layout.SUCCESS)  # written by who saw the run complete a moment ago
    return len(rows)


def _codes_of(chunk: Chunk, failed: dict[int, str]) -> dict[str, int]:
    return dict(
        Counter(
            failed[piece.first_row + index]
            for piece in chunk.slices
            for index in range(piece.start, piece.stop)
        )
    )


def _failed_rows(storage: Storage, state: RunState, codes: set[str]) -> dict[int, str]:
    """Row to code of its newest outcome, where that is a failure."""
    failed: dict[int, str] = {}
    for receipt in sorted(state.receipts.values(), key=lambda one: one.generation):
        if receipt.failed == 0 and receipt.generation == 0:
            continue
        table = read_output_part(storage, receipt.file, ["row", "status", "error_code"])
        for record in table.to_pylist():
            failed.pop(record["row"], None)
            if record["status"] == "failed":
                failed[record["row"]] = record["error_code"]
    return {row: code for row, code in failed.items() if not codes or code in codes}
