from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batchwright.core.errors import JobError, StorageError
from batchwright.core.schemas import CONTRACT
from batchwright.write.folder import LocalFolder
from batchwright.write.lakes import LAKES, LakeOptions, delta_schema

deltalake = pytest.importorskip("deltalake")
lancedb = pytest.importorskip("lancedb")

OPTIONS = LakeOptions(1 << 28)


def _batches(rows: int, schema: pa.Schema, value: Callable[[int], Any]) -> Iterator[pa.RecordBatch]:
    for start in range(0, rows, 10):
        yield pa.RecordBatch.from_pylist(
            [value(i) for i in range(start, start + 10)], schema=schema
        )


def _result(row: int) -> dict[str, Any]:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    return {
        "row": row, "id": f"r{row}", "status": "ok", "text": f"t{row}", "warnings": None,
        "tool_calls": calls if row % 2 else None, "embedding": [row, 0.5],
    }  # fmt: skip


SCHEMA = pa.schema([*CONTRACT, pa.field("embedding", pa.list_(pa.float16(), 2))])


def _rows(kind: str, path: Path) -> list[dict[str, Any]]:
    if kind == "delta":
        table = pa.table(deltalake.DeltaTable(str(path)).to_pyarrow_table())
    else:
        table = lancedb.connect(str(path.parent)).open_table(path.stem).to_arrow()
    return sorted(table.to_pylist(), key=lambda row: int(row["row"]))


@pytest.mark.parametrize("kind", ["delta", "lance"])
def test_a_second_export_takes_the_place_of_the_first(tmp_path: Path, kind: str) -> None:
    write = LAKES[kind]
    for rows in (40, 20):
        path = write(tmp_path / "table", SCHEMA, _batches(rows, SCHEMA, _result), OPTIONS)
        found = _rows(kind, path)
        assert [row["row"] for row in found] == list(range(rows))
        assert found[3]["tool_calls"] == _result(3)["tool_calls"]
        assert list(found[3]["embedding"]) == [3, 0.5]
        assert found[2]["tool_calls"] is None
    other = pa.schema([pa.field("row", pa.int64()), pa.field("new", pa.string())])
    path = write(
        tmp_path / "table", other, _batches(10, other, lambda i: {"row": i, "new": "x"}), OPTIONS
    )
    assert list(_rows(kind, path)[0]) == ["row", "new"]


@pytest.mark.parametrize("kind", ["delta", "lance"])
def test_a_failure_half_way_leaves_the_version_before(tmp_path: Path, kind: str) -> None:
    path = LAKES[kind](tmp_path / "table", SCHEMA, _batches(20, SCHEMA, _result), OPTIONS)

    def broken(row: int) -> dict[str, Any]:
        if row == 25:
            raise StorageError("part-7 cannot be read")
        return {**_result(row), "text": "new"}

    with pytest.raises(StorageError, match="part-7 cannot be read"):
        LAKES[kind](tmp_path / "table", SCHEMA, _batches(40, SCHEMA, broken), OPTIONS)
    assert [row["text"] for row in _rows(kind, path)] == [f"t{i}" for i in range(20)]


def test_delta_has_partitions(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("row", pa.int64()), pa.field("label", pa.string())])
    rows = _batches(30, schema, lambda i: {"row": i, "label": "ab"[i % 2]})
    path = LAKES["delta"](tmp_path / "t", schema, rows, LakeOptions(1 << 28, ("label",)))
    assert {one.name for one in path.iterdir()} == {"_delta_log", "label=a", "label=b"}
    assert len(_rows("delta", path)) == 30
    with pytest.raises(JobError, match="no column 'z'"):
        LAKES["delta"](tmp_path / "u", schema, iter([]), LakeOptions(1 << 28, ("z",)))


def test_types_that_delta_lacks_become_the_nearest_or_are_refused(tmp_path: Path) -> None:
    kept = pa.schema([pa.field("u", pa.uint64()), pa.field("at", pa.timestamp("ns", "UTC"))])
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=dt.UTC)
    fine = [{"u": 2**40, "at": moment}] * 10
    path = LAKES["delta"](tmp_path / "t", kept, _batches(10, kept, fine.__getitem__), OPTIONS)
    table = pa.table(deltalake.DeltaTable(str(path)).to_pyarrow_table())
    assert table.to_pylist()[0] == fine[0]
    large = [{"u": 2**64 - 1, "at": None}] * 10
    with pytest.raises(JobError, match="column 'u' does not fit int64"):
        LAKES["delta"](tmp_path / "t", kept, _batches(10, kept, large.__getitem__), OPTIONS)
    for kind in (pa.time64("us"), pa.duration("s"), pa.list_(pa.decimal256(60))):
        with pytest.raises(JobError, match="column 'x' is .* no such type"):
            delta_schema(pa.schema([pa.field("x", kind)]))


@pytest.mark.parametrize("kind", ["delta", "lance"])
def test_a_table_and_files_do_not_share_a_folder(tmp_path: Path, kind: str) -> None:
    mine = tmp_path / "mine.lance"
    mine.mkdir()
    (mine / "results-00000.parquet").touch()
    with pytest.raises(JobError, match=r"files that are not of a table: results-00000\.parquet"):
        LAKES[kind](mine, SCHEMA, _batches(10, SCHEMA, _result), OPTIONS)
    path = LAKES[kind](tmp_path / "t.lance", SCHEMA, _batches(10, SCHEMA, _result), OPTIONS)
    with pytest.raises(JobError, match="Choose another folder"):
        LocalFolder(path)
    assert len(_rows(kind, path)) == 10
