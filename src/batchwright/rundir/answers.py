"""How long the answers of a pilot's rows became."""

from __future__ import annotations

from batchwright.rundir.output_parts import read_output_part
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage


def answer_lengths(storage: Storage, state: RunState) -> dict[int, int]:
    """Output tokens of each row of the pilot that has an answer, by row number."""
    mine = {(chunk.generation, chunk.number) for chunk in state.pilot}
    columns = ["row", "status", "completion_tokens"]
    found: dict[int, int] = {}
    for one in state.receipts.values():
        if (one.generation, one.chunk) not in mine:
            continue
        table = read_output_part(storage, one.file, columns)
        rows = zip(*(table.column(name).to_pylist() for name in columns), strict=True)
        found |= {row: count for row, status, count in rows if status == "ok" and count}
    return found
