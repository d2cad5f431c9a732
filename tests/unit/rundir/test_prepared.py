from __future__ import annotations

from pathlib import Path

import pytest

from batchwright.core.records import Slice
from batchwright.rundir.prepared import prepared_receipt, read_columns, read_slices
from tests.unit.rundir.small_runs import SmallRun, small_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallRun:
    """Parts of 6 rows, in record batches of 3 rows, whose sampling differs."""
    monkeypatch.setattr("batchwright.prepare.ROWS_PER_BATCH", 3)
    monkeypatch.setattr("batchwright.prepare.ROWS_PER_PART", 6)
    rows = [{"id": f"r{i}", "prompt": "x" * (i + 1), "seed": i % 4} for i in range(14)]
    run = small_run(tmp_path, rows)
    run.prepare()
    return run


def test_the_slices_of_a_chunk_come_in_its_order(run: SmallRun) -> None:
    first, second, third = (f"prepared/part-000000-{part:04d}.arrow" for part in range(3))
    pieces = [Slice(third, 0, 2, 12), Slice(first, 2, 5, 0), Slice(second, 5, 6, 6),
              Slice(first, 0, 1, 0)]  # fmt: skip
    table, numbers = read_slices(run.storage, pieces)
    rows = [12, 13, 2, 3, 4, 11, 0]
    assert numbers.tolist() == rows
    assert table.column("id").to_pylist() == [f"r{row}" for row in rows]
    assert [len(ids) for ids in table.column("token_ids").to_pylist()] == [row + 1 for row in rows]
    seeds = [f'"seed":{row % 4}' for row in rows]
    assert all(
        seed in text for seed, text in zip(seeds, table.column("sampling").to_pylist(), strict=True)
    )


def test_some_columns_come_in_the_order_asked(run: SmallRun) -> None:
    table = read_columns(run.storage, "prepared/part-000000-0000.arrow", ["line", "id"])
    assert table.column("line").to_pylist() == [1, 2, 3, 4, 5, 6]
    assert table.column("id").to_pylist()[0] == "r0"


def test_a_part_that_is_not_there_has_no_receipt(run: SmallRun) -> None:
    receipt = prepared_receipt(run.storage, 0, 2)
    assert receipt is not None
    assert receipt.last
    assert prepared_receipt(run.storage, 0, 3) is None
