from __future__ import annotations

import pyarrow as pa

from batchwright.cli.rows import _as_records


def test_a_time_that_python_cannot_hold_is_shown() -> None:
    at = pa.array([2**63 - 1], pa.int64()).cast(pa.timestamp("us"))
    kept = pa.StructArray.from_arrays([at], ["until"])
    table = pa.table({"row": [3], "input": kept})
    assert _as_records(table) == [{"row": 3, "input": {"until": "+294247-01-10T04:00:54.775807"}}]
