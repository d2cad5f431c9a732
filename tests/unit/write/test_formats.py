"""Compression, CSV, partitions, row groups, order, the manifest, and what a failure leaves."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow import csv

from batchwright.core.errors import JobError, StorageError, VerifyError
from batchwright.core.outcomes import Outcome
from batchwright.core.schemas import CONTRACT_NAMES, JSON_INPUT
from batchwright.core.tasks import TaskSettings
from batchwright.core.vectors import EmbeddingSettings
from batchwright.write.folder import LocalFolder
from batchwright.write.parts import build_part, encode_part, summarise
from tests.unit.write.stored import Folder, Receipt, export, prepared, rejections, store

KINDS = {"q": {"string"}, "n": {"int"}}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "output")


def _reviews(folder: Folder, rows: int = 60) -> list[Receipt]:
    source = prepared([json.dumps({"q": f"q{i}", "n": i % 3}) for i in range(rows)])
    return [
        store(folder, i, source, range(i * 20, i * 20 + 20), failed=[21]) for i in range(rows // 20)
    ]


def _opened(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data


@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_compressed_lines_are_the_plain_ones(folder: Folder, tmp_path: Path, format: str) -> None:
    common: Any = {"total_rows": 60, "column_kinds": KINDS, "format": format}
    parts = _reviews(folder)
    (plain,) = export(folder, tmp_path / "plain", parts, **common)
    for compression, suffix in (("gzip", "gz"), ("zstd", "zst")):
        paths = [
            export(folder, tmp_path / f"{suffix}{i}", parts, **common, compression=compression)[0]
            for i in range(2)
        ]
        assert paths[0].name == f"results-00000.{format}.{suffix}"
        assert _opened(paths[0]) == plain.read_bytes()
        assert paths[0].read_bytes() == paths[1].read_bytes()
        assert paths[0].stat().st_size < plain.stat().st_size / 2


def test_every_compressed_file_is_whole_and_each_csv_has_the_header(
    folder: Folder, tmp_path: Path
) -> None:
    rows = 6000
    source = prepared([json.dumps({"q": f"{i * 7919}", "n": i}) for i in range(rows)])
    part = store(folder, 0, source, range(rows))
    common: Any = {"total_rows": rows, "column_kinds": KINDS, "target_file_bytes": 20_000}
    paths = export(folder, tmp_path / "c", [part], **common, format="csv", compression="gzip")
    assert len(paths) > 1
    texts = [_opened(path) for path in paths]
    header = texts[0].split(b"\n")[0]
    assert [text.split(b"\n")[0] for text in texts] == [header] * len(texts)
    assert sum(text.count(b"\n") for text in texts) == rows + len(texts)
    manifest = json.loads((tmp_path / "c" / ".manifest.json").read_text())
    assert [one["name"] for one in manifest["files"]] == [path.name for path in paths]
    assert [one["rows"] for one in manifest["files"]] == [text.count(b"\n") - 1 for text in texts]


def _read_csv(path: Path) -> list[dict[str, Any]]:
    table = csv.read_csv(
        path,
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
        ),
    )
    return list(table.to_pylist())


def test_csv_keeps_what_a_cell_can_hold(folder: Folder, tmp_path: Path) -> None:
    values = [
        {"q": 'a "quoted",\r\nsecond line', "x": 0.1, "o": {"k": [1, None]}, "b": True},
        {"q": "", "x": None, "o": [], "b": None},
        {"q": "=1+1", "x": 1e300, "o": "text", "b": False},
    ]
    part = store(folder, 0, prepared([json.dumps(one) for one in values]), range(3), failed=[1])
    kinds = {
        "q": {"string"},
        "x": {"float", "null"},
        "o": {"object", "list", "string"},
        "b": {"bool"},
    }
    (path,) = export(folder, tmp_path / "c", [part], total_rows=3, column_kinds=kinds, format="csv")
    rows = _read_csv(path)
    assert list(rows[0]) == [*CONTRACT_NAMES, *kinds]
    assert [row["q"] for row in rows] == [one["q"] for one in values]
    assert [row["x"] for row in rows] == [0.1, None, 1e300]
    assert [json.loads(row["o"]) for row in rows] == [one["o"] for one in values]
    assert [row["b"] for row in rows] == [True, None, False]
    assert [row["status"] for row in rows] == ["ok", "failed", "ok"]
    assert [row["text"] for row in rows] == ["answer 0", None, "answer 2"]
    # A reader with other rules finds the same rows.
    assert duckdb.sql(f"select count(*), sum(\"row\") from read_csv('{path}')").fetchall() == [
        (3, 3)
    ]


def test_vectors_are_json_in_a_cell(folder: Folder, tmp_path: Path) -> None:
    task = TaskSettings("embed", EmbeddingSettings("mean", 3))
    vectors = np.array([[0.1, -1.5, 3e-8], [1, 2, 3]], np.float32)
    outcomes = [Outcome(0, [], embedding=vectors[0].tobytes()),
                Outcome(1, [], error_code="timeout", error="slow")]  # fmt: skip
    table = build_part(prepared(["{}"] * 2), np.arange(2), outcomes, task=task)
    data = encode_part(table)
    (folder.root / "v.parquet").write_bytes(data)
    receipt = Receipt(0, 0, "v.parquet", "", worker="w", seconds=1.0, **summarise(table))
    common: Any = {"total_rows": 2, "column_kinds": {}, "task": task, "format": "csv"}
    (path,) = export(folder, tmp_path / "c", [receipt], **common)
    cells = [row["embedding"] for row in _read_csv(path)]
    assert np.array_equal(np.array(json.loads(cells[0]), np.float32), vectors[0])
    assert cells[1] is None


def test_folders_are_named_by_values_and_files_lack_the_columns(
    folder: Folder, tmp_path: Path
) -> None:
    values = ["a b", "x/y=z", "é", "", None]
    source = prepared([json.dumps({"q": values[i % 5], "n": i}) for i in range(50)])
    parts = [store(folder, i, source, range(i * 10, i * 10 + 10), failed=[3]) for i in range(5)]
    kinds = {"q": {"string", "null"}, "n": {"int"}}
    common: Any = {"total_rows": 50, "column_kinds": kinds, "partition_by": ("status", "q")}
    out = tmp_path / "p"
    paths = export(folder, out, parts, **common)
    names = sorted(str(path.parent.relative_to(out)) for path in paths)
    assert names == [
        "status=failed/q=__HIVE_DEFAULT_PARTITION__",
        "status=ok/q=%C3%A9",
        "status=ok/q=__HIVE_DEFAULT_PARTITION__",
        "status=ok/q=a b",
        "status=ok/q=x%2Fy%3Dz",
    ]
    assert "q" not in pq.ParquetFile(paths[0]).schema_arrow.names
    rows = sorted(pq.read_table(out).to_pylist(), key=lambda row: row["row"])
    assert [row["n"] for row in rows] == list(range(50))
    assert [row["q"] for row in rows] == [values[i % 5] or None for i in range(50)]
    assert rows[3]["status"] == "failed"
    manifest = json.loads((out / ".manifest.json").read_text())
    assert {one["name"] for one in manifest["files"]} == {
        str(path.relative_to(out)) for path in paths
    }
    # The next export leaves nothing of this one, neither files nor folders.
    (path,) = export(folder, out, parts, total_rows=50, column_kinds=kinds)
    assert {one.name for one in out.iterdir()} == {".manifest.json", "_SUCCESS", path.name}


def test_partitions_that_cannot_be_are_refused(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = _reviews(folder)
    common: Any = {"total_rows": 60, "column_kinds": KINDS}
    with pytest.raises(JobError, match="no column 'z'"):
        export(folder, tmp_path / "p", parts, **common, partition_by=("z",))
    with pytest.raises(JobError, match="'warnings' is list"):
        export(folder, tmp_path / "p", parts, **common, partition_by=("warnings",))
    monkeypatch.setattr("batchwright.write.partitions.PARTITIONS_MAX", 5)
    with pytest.raises(JobError, match="more than 5 values"):
        export(folder, tmp_path / "p", parts, **common, partition_by=("q",))
    assert list((tmp_path / "p").iterdir()) == []


def test_many_partitions_do_not_keep_everything_in_memory(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchwright.write.partitions._IN_HAND_BYTES", 2000)
    source = prepared([json.dumps({"q": f"q{i}", "n": i % 3}) for i in range(3000)])
    part = store(folder, 0, source, range(3000))
    common: Any = {"total_rows": 3000, "column_kinds": KINDS, "partition_by": ("n",)}
    paths = export(folder, tmp_path / "p", [part], **common)
    assert len(paths) == 3  # more row groups, not more files
    assert pq.ParquetFile(paths[0]).num_row_groups > 1
    assert pq.read_table(tmp_path / "p").num_rows == 3000


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "lz4", "none"])
def test_parquet_has_the_compression_that_was_asked_for(
    folder: Folder, tmp_path: Path, compression: str
) -> None:
    parts = _reviews(folder)
    common: Any = {"total_rows": 60, "column_kinds": KINDS}
    (path,) = export(folder, tmp_path / "p", parts, **common, compression=compression)
    said = pq.ParquetFile(path).metadata.row_group(0).column(0).compression
    assert said == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())
    assert pq.read_table(path).column("n").to_pylist() == [i % 3 for i in range(60)]


def test_row_groups_have_their_size(folder: Folder, tmp_path: Path) -> None:
    part = store(folder, 0, prepared([json.dumps({"q": "x", "n": 1})] * 10_000), range(10_000))
    common: Any = {"total_rows": 10_000, "column_kinds": KINDS}
    (path,) = export(folder, tmp_path / "p", [part], **common, row_group_mb=1)
    metadata = pq.ParquetFile(path).metadata
    assert [metadata.row_group(i).num_rows for i in range(3)] == [2048] * 3
    (path,) = export(folder, tmp_path / "p", [part], **common)
    assert pq.ParquetFile(path).metadata.num_row_groups == 1


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_any_order_has_the_same_rows(folder: Folder, tmp_path: Path, format: str) -> None:
    rows = 100
    source = prepared([json.dumps({"q": f"q{i}", "n": i}) for i in range(rows)])
    mixed = np.random.default_rng(0).permutation([i for i in range(rows) if i != 50]).tolist()
    parts = [
        *(
            store(folder, i, source, mixed[i * 33 : i * 33 + 33], failed=mixed[::9])
            for i in range(3)
        ),
        store(folder, 0, source, mixed[::9], generation=1, failed=mixed[::18]),
    ]
    rejected = [rejections([50], pa.array(['{"q": "r"}'], JSON_INPUT))]
    common: Any = {
        "total_rows": rows, "column_kinds": KINDS, "rejected": rejected, "format": format,
    }  # fmt: skip

    def lines(in_order: bool) -> list[Any]:
        (path,) = export(folder, tmp_path / "x", parts, **common, in_order=in_order)
        if format == "parquet":
            return list(pq.read_table(path).to_pylist())
        return [json.loads(line) for line in path.read_text().splitlines()]

    anyhow, ordered = lines(False), lines(True)
    assert [one["row"] for one in anyhow] != list(range(rows))
    assert sorted(anyhow, key=lambda one: one["row"]) == ordered
    assert len({*(one["row"] for one in anyhow)}) == rows


def test_any_order_finds_missing_and_double_rows(folder: Folder, tmp_path: Path) -> None:
    source = prepared(['{"q": "x"}'] * 6)
    common: Any = {"total_rows": 6, "in_order": False}
    part = store(folder, 0, source, [0, 1, 3])
    with pytest.raises(VerifyError, match="without a result: 2, 4, 5"):
        export(folder, tmp_path / "o", [part], **common)
    with pytest.raises(VerifyError, match="more than one result: 1"):
        export(folder, tmp_path / "o", [part, store(folder, 1, source, [1, 2])], **common)
    with pytest.raises(VerifyError, match="beyond the 2 of the input: 3"):
        export(folder, tmp_path / "o", [part], **{**common, "total_rows": 2})
    again = store(folder, 2, source, [2], generation=1)
    rejected = [rejections([2], pa.nulls(1, JSON_INPUT))]
    for in_order in (True, False):
        with pytest.raises(VerifyError, match="more than one result: 2"):
            export(
                folder, tmp_path / "o", [part, again], rejected=rejected, total_rows=6,
                in_order=in_order,
            )  # fmt: skip


def test_the_manifest_counts_and_digests(folder: Folder, tmp_path: Path) -> None:
    common: Any = {"total_rows": 60, "column_kinds": KINDS}
    (path,) = export(folder, tmp_path / "p", _reviews(folder), **common)
    manifest = json.loads((tmp_path / "p" / ".manifest.json").read_text())
    data = path.read_bytes()
    assert manifest["files"] == [
        {
            "name": "results-00000.parquet",
            "rows": 60,
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
    ]
    said = {name: manifest[name] for name in ("rows", "ok", "failed", "rejected", "bytes")}
    assert said == {"rows": 60, "ok": 59, "failed": 1, "rejected": 0, "bytes": len(data)}


def test_a_failed_export_leaves_the_one_before_it(folder: Folder, tmp_path: Path) -> None:
    parts = _reviews(folder)
    common: Any = {"total_rows": 60, "column_kinds": KINDS}
    export(folder, tmp_path / "p", parts, **common)
    before = {path.name: path.read_bytes() for path in (tmp_path / "p").iterdir()}
    (folder.root / parts[2].file).write_bytes(b"PAR1 torn")
    with pytest.raises(StorageError, match=parts[2].file):
        export(folder, tmp_path / "p", parts, **common)
    assert {path.name: path.read_bytes() for path in (tmp_path / "p").iterdir()} == before


def test_what_a_killed_export_left_is_removed_by_the_next(folder: Folder, tmp_path: Path) -> None:
    out = tmp_path / "p"
    killed = LocalFolder(out)
    killed.open("results-00000.parquet").close()
    (out / "results-mine.txt.d").mkdir()
    (out / "notes.txt").write_text("mine")
    common: Any = {"total_rows": 60, "column_kinds": KINDS}
    (path,) = export(folder, out, _reviews(folder), **common)
    assert {one.name for one in out.iterdir()} == {
        ".manifest.json", "_SUCCESS", "notes.txt", "results-mine.txt.d", path.name,
    }  # fmt: skip


def test_a_manifest_cannot_name_files_that_are_not_ours(folder: Folder, tmp_path: Path) -> None:
    out = tmp_path / "p"
    out.mkdir()
    (tmp_path / "results-other").write_text("mine")
    names = ["../results-other", "notes", "a/results-1", 7]
    (out / ".manifest.json").write_text(json.dumps({"files": [{"name": one} for one in names]}))
    export(folder, out, _reviews(folder), total_rows=60, column_kinds=KINDS)
    assert (tmp_path / "results-other").exists()


def test_success_among_parquet_files_has_the_schema_and_no_rows(
    folder: Folder, tmp_path: Path
) -> None:
    (path,) = export(folder, tmp_path / "p", _reviews(folder), total_rows=60, column_kinds=KINDS)
    success = pq.ParquetFile(tmp_path / "p" / "_SUCCESS")
    assert success.metadata.num_row_groups == 0
    assert success.schema_arrow.equals(pq.read_schema(path))
    assert math.isfinite(success.metadata.serialized_size)
