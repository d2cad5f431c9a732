from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright.core.errors import StorageError
from batchwright.write import sorted_runs
from batchwright.write.sorted_runs import SortedRuns


def _table(rows: list[int], generation: int = 0) -> pa.Table:
    return pa.table(
        {
            "row": pa.array(rows, pa.int64()),
            "generation": pa.array([generation] * len(rows), pa.int32()),
            "text": pa.array(
                [f"{row}:{generation}" * (row % 7) for row in rows], pa.large_string()
            ),
            "list": pa.array([[row] if row % 3 else None for row in rows], pa.list_(pa.int64())),
        }
    )


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_runs, "_PACKED_BYTES", 1_000)
    monkeypatch.setattr(sorted_runs, "RUN_BYTES", 4_000)
    monkeypatch.setattr(sorted_runs, "PIECE_BYTES", 500)
    monkeypatch.setattr(sorted_runs, "FAN_IN", 3)
    monkeypatch.setattr(sorted_runs, "_STEP_BYTES", 2_000)


def _sorted(scratch: Path, tables: list[pa.Table]) -> list[pa.Table]:
    runs = SortedRuns(scratch, ("row", "generation"))
    for table in tables:
        runs.add(table)
    return list(runs.merged())


def test_many_runs_come_back_as_one_in_order(tmp_path: Path, small_runs: None) -> None:
    rows = np.random.default_rng(0).permutation(5000).tolist()
    tables = [_table(rows[i : i + 50]) for i in range(0, 5000, 50)]
    found = _sorted(tmp_path, tables)
    assert len(found) > 20
    assert max(table.nbytes for table in found) < 50_000
    assert pa.concat_tables(found).equals(_table(list(range(5000))))
    assert len(list(tmp_path.glob("run-*"))) > 3  # some of them longer ones, made of three


def test_what_fits_in_memory_needs_no_disk(tmp_path: Path) -> None:
    (found,) = _sorted(tmp_path, [_table([3, 1]), _table([2, 1], generation=1)])
    assert found.column("row").to_pylist() == [1, 1, 2, 3]
    assert found.column("generation").to_pylist() == [0, 1, 1, 0]
    assert list(tmp_path.iterdir()) == []
    assert _sorted(tmp_path, []) == []


@settings(max_examples=25, deadline=None)
@given(
    pieces=st.lists(st.lists(st.integers(-(2**40), 2**40), max_size=40), max_size=30),
    dense=st.booleans(),
)
def test_nothing_is_lost_or_made_up(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[list[int]], dense: bool
) -> None:
    if dense:
        pieces = [[key % 100 for key in keys] for keys in pieces]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"_PACKED_BYTES": 64, "RUN_BYTES": 600, "PIECE_BYTES": 100}.items():
            patch.setattr(sorted_runs, name, value)
        patch.setattr(sorted_runs, "FAN_IN", 2)
        patch.setattr(sorted_runs, "_STEP_BYTES", 200)
        found = _sorted(tmp_path_factory.mktemp("runs"), [_table(keys) for keys in pieces])
    keys = [key for table in found for key in table.column("row").to_pylist()]
    assert keys == sorted(key for keys in pieces for key in keys)


def test_a_full_disk_says_how_much_room_is_needed(
    tmp_path: Path, small_runs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sorted_runs.pa, "OSFile", full)
    with pytest.raises(StorageError, match=r"cannot sort .*No space left") as caught:
        _sorted(tmp_path, [_table(list(range(1000)))])
    assert "about as much room as the parts" in str(caught.value)
