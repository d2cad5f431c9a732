from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from batchwright.core.records import GROUPED, Slice
from batchwright.rundir.key_sort import KeyFile
from batchwright.rundir.prepared import (
    prepared_receipt,
    prompt_lengths,
    read_slices,
    record_batches,
    row_numbers,
)
from batchwright.rundir.regroup import Regrouper
from tests.unit.rundir.small_runs import SmallRun, small_run

ROWS = 40


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallRun:
    """Parts of 6 rows, in record batches of 3 rows, whose sampling differs."""
    monkeypatch.setattr("batchwright.prepare.ROWS_PER_BATCH", 3)
    monkeypatch.setattr("batchwright.prepare.ROWS_PER_PART", 6)
    rows = [{"id": f"r{i}", "prompt": "x" * (i + 1), "seed": i % 4} for i in range(ROWS)]
    run = small_run(tmp_path, rows)
    run.prepare()
    return run


def all_slices(run: SmallRun) -> list[Slice]:
    receipts = iter(lambda: prepared_receipt(run.storage, 0, len(found)), None)
    found: list[Slice] = []
    first = 0
    for receipt in receipts:
        found.append(Slice(receipt.file, 0, receipt.rows, first))
        first += receipt.rows
    return found


def regroup(
    run: SmallRun, slices: list[Slice], places: np.ndarray, chunks: list[int], scratch: Path
) -> list[Slice]:
    scratch.mkdir()
    writer = Regrouper(run.storage, slices, places, chunks, scratch, "x")
    for _ in writer.steps():
        pass
    return writer.slices


@pytest.mark.parametrize("buffer_bytes", [0, 400, 1 << 30], ids=["each", "some", "none"])
@pytest.mark.parametrize("part_bytes", [1, 1000, 1 << 30], ids=["chunk", "few", "one"])
def test_rows_come_in_the_new_order_whatever_fits_in_memory(
    run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffer_bytes: int,
    part_bytes: int,
) -> None:  # fmt: skip
    monkeypatch.setattr("batchwright.rundir.regroup.BUFFER_BYTES", buffer_bytes)
    monkeypatch.setattr("batchwright.rundir.regroup.PART_BYTES", part_bytes)
    monkeypatch.setattr("batchwright.rundir.regroup.ROWS_PER_BATCH", 2)
    order = np.random.default_rng(3).permutation(ROWS)
    places = np.empty(ROWS, dtype=np.int64)
    places[order] = np.arange(ROWS)
    chunks = [7, 7, 11, 15]
    slices = regroup(run, all_slices(run), places, chunks, tmp_path / "scratch")
    assert [one.stop - one.start for one in slices] == chunks
    assert all(one.first_row == GROUPED for one in slices)
    assert row_numbers(run.storage, slices).tolist() == order.tolist()
    assert prompt_lengths(run.storage, slices).tolist() == (order + 1).tolist()
    for piece, expected in zip(slices, np.split(order, np.cumsum(chunks)[:-1]), strict=True):
        table, rows = read_slices(run.storage, [piece])
        assert rows.tolist() == expected.tolist()
        assert table.column("id").to_pylist() == [f"r{row}" for row in expected]
        assert [len(ids) for ids in table.column("token_ids").to_pylist()] == (
            expected + 1
        ).tolist()
        sampling = table.column("sampling").to_pylist()
        assert all(
            f'"seed":{row % 4}' in text for row, text in zip(expected, sampling, strict=True)
        )
        assert table.schema.names == read_slices(run.storage, all_slices(run))[0].schema.names
    parts = {1: {4}, 1000: {2, 3, 4}, 1 << 30: {1}}[part_bytes]
    assert len({one.part for one in slices}) in parts


def test_only_some_rows_may_be_regrouped(run: SmallRun, tmp_path: Path) -> None:
    whole = all_slices(run)
    some = [
        Slice(whole[0].part, 1, 2, 0), Slice(whole[0].part, 4, 6, 0), Slice(whole[3].part, 0, 3, 18)
    ]  # fmt: skip
    slices = regroup(run, some, np.array([5, 4, 3, 2, 1, 0]), [4, 2], tmp_path / "scratch")
    assert row_numbers(run.storage, slices).tolist() == [20, 19, 18, 5, 4, 1]
    assert row_numbers(run.storage, [some[1], slices[1]]).tolist() == [4, 5, 4, 1]


def test_record_batches_are_read_once_and_whole(run: SmallRun) -> None:
    whole = all_slices(run)
    found = list(record_batches(run.storage, whole, ["id"]))
    assert [batch.num_rows for batch, _ in found] == [3] * 13 + [1]
    assert np.concatenate([rows for _, rows in found]).tolist() == list(range(ROWS))
    part = whole[1].part
    pieces = [Slice(part, 0, 1, 6), Slice(part, 2, 3, 6), Slice(part, 5, 6, 6)]
    found = list(record_batches(run.storage, pieces, ["id"]))
    assert [batch.column("id").to_pylist() for batch, _ in found] == [["r6", "r8"], ["r11"]]
    assert [rows.tolist() for _, rows in found] == [[6, 8], [11]]
    assert list(record_batches(run.storage, [])) == []


def test_keys_are_sorted_with_ties_as_they_came(tmp_path: Path) -> None:
    raw = [b"b", b"", b"ab", b"b", b"a\xff", b"a", b"b"]
    numbers = np.arange(len(raw), dtype=np.int32)
    with KeyFile(tmp_path) as keys:
        for part in (slice(0, 3), slice(3, 7)):
            keys.add(pa.array(raw[part], pa.large_binary()), numbers[part], 10 + numbers[part])
    table = pa.Table.from_batches(list(keys.sorted(0)))
    assert table.column("seq").to_pylist() == [1, 5, 2, 4, 0, 3, 6]
    assert table.column("prompt").to_pylist() == table.column("seq").to_pylist()
    assert table.column("cap").to_pylist() == [11, 15, 12, 14, 10, 13, 16]
    rest = pa.Table.from_batches(list(keys.sorted(3)))
    assert rest.column("seq").to_pylist() == [5, 4, 3, 6]
