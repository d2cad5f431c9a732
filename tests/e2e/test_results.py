"""One finished run in every format, opened by other libraries; and while it is not finished."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import batchwright
from batchwright.core.errors import JobError
from tests.e2e.command import call

ROWS = 300
BAD = 7


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    folder = tmp_path_factory.mktemp("results")
    rows = [{"id": f"r{i}", "text": f"review {i}", "stars": i % 5} for i in range(ROWS)]
    del rows[BAD]["text"]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    call(
        "run", folder / "in.jsonl", "--model", tiny_model, "--engine", "fake",
        "--prompt", "{{ text }}", "--dir", folder / "run",
        "--set", "run.chunk_rows=50", "--set", "run.pilot_rows=0",
    )  # fmt: skip
    return folder / "run"


def _export(run: Path, out: Path, *options: object) -> list[Path]:
    return [Path(path) for path in call("export", run, "-o", out, *options)["results"]]


def test_every_format_has_every_row(run: Path, tmp_path: Path) -> None:
    expected = pq.read_table(run / "results").to_pylist()
    assert [row["row"] for row in expected] == list(range(ROWS))
    (path,) = _export(run, tmp_path / "csv", "--format", "csv", "--compression", "zstd")
    assert path.name == "results-00000.csv.zst"
    (path,) = _export(run, tmp_path / "gz", "--format", "jsonl", "--compression", "gzip")
    assert path.name == "results-00000.jsonl.gz"
    (table,) = _export(run, tmp_path / "delta", "--format", "delta")
    (again,) = _export(run, tmp_path / "delta", "--format", "delta", "--order", "any")
    assert table == again == tmp_path / "delta"
    deltalake = pytest.importorskip("deltalake")
    found = pa.table(deltalake.DeltaTable(str(table)).to_pyarrow_table()).to_pylist()
    assert sorted(found, key=lambda row: int(row["row"])) == expected
    files = _export(run, tmp_path / "parts", "--partition-by", "status")
    assert {path.parent.name for path in files} == {"status=ok", "status=rejected"}
    assert ds.dataset(tmp_path / "parts", partitioning="hive").count_rows() == ROWS


def test_options_that_cannot_be_are_refused(run: Path, tmp_path: Path) -> None:
    refused = call("export", run, "--format", "csv", "--compression", "lz4", exit_code=2)
    assert "output.compression: lz4: csv has none, gzip, zstd" in refused["error"]["message"]
    refused = call("export", run, "--set", "run.replicas=2", exit_code=2)
    assert "computed already" in refused["error"]["message"]
    refused = call("export", run, "--format", "xml", exit_code=2)
    assert "output.format" in refused["error"]["message"]


# In a process of its own: whether it may use the network is read when it is imported.
OPEN_WITH_DATASETS = """
import sys, datasets
datasets.disable_progress_bars()
for out in sys.argv[2:]:
    for found in (
        datasets.load_dataset("parquet", data_dir=out, cache_dir=sys.argv[1])["train"],
        datasets.load_dataset(out, cache_dir=sys.argv[1])["train"],
    ):
        assert sorted(found["row"]) == list(range(300)), found
        assert found.features["text"].dtype == "large_string", found.features
"""


def test_hugging_face_opens_the_folder_as_it_is(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    _export(run, tmp_path / "parts", "--partition-by", "status")
    folders = [str(run / "results"), str(tmp_path / "parts")]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    opened = subprocess.run(
        [sys.executable, "-c", OPEN_WITH_DATASETS, str(tmp_path / "cache"), *folders],
        env=offline, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert opened.returncode == 0, opened.stderr


def test_python_has_the_rows_as_every_library_wants_them(run: Path) -> None:
    opened = batchwright.open(run)
    assert opened.complete
    assert opened.counts().as_json()["rows_in"] == ROWS
    expected = pq.read_table(run / "results")
    results = opened.results()
    assert results.schema.equals(expected.schema)
    assert results.to_arrow().equals(expected)
    assert results.to_arrow().equals(expected)  # it is read anew each time
    assert opened.to_pandas()["stars"].dtype == "int64[pyarrow]"
    frame = opened.to_polars()
    assert frame["text"].to_list() == expected.column("text").to_pylist()
    relation = opened.to_duckdb()
    assert relation.filter("stars = 3").count("*").fetchall() == [(ROWS // 5,)]
    assert relation.filter("stars = 4").count("*").fetchall() == [(ROWS // 5,)]
    stars = opened.results(["stars"], order="any").to_arrow()
    assert stars.column_names[-1] == "stars"
    assert "input_text" not in stars.column_names
    (bad,) = opened.failed().to_arrow().to_pylist()
    assert (bad["row"], bad["status"], bad["error_code"]) == (BAD, "rejected", "missing_field")


def test_an_unfinished_run_shows_what_is_committed(run: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(run, half)
    receipts = sorted((half / "receipts").iterdir())
    kept = receipts[2].read_bytes()
    receipts[2].unlink()
    opened = batchwright.open(half)
    assert not opened.complete
    rows = opened.results().to_arrow().column("row").to_pylist()
    assert rows == sorted(set(rows))
    assert 0 < len(rows) == opened.counts().settled < ROWS
    assert sorted(opened.results(order="any").to_arrow().column("row").to_pylist()) == rows
    assert "not complete" in repr(opened)
    receipts[2].write_bytes(kept)  # committed meanwhile
    assert opened.results().to_arrow().num_rows == len(rows)
    assert opened.refresh().results().to_arrow().num_rows == ROWS


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="is not a run directory"):
        batchwright.open(tmp_path)


def test_a_missing_extra_names_the_pip_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: Any = batchwright.open(run)
    for extra, method in (("polars", "to_polars"), ("pandas", "to_pandas")):
        monkeypatch.setitem(sys.modules, extra, None)
        with pytest.raises(JobError, match="not installed") as caught:
            getattr(opened, method)()
        assert f"pip install 'batchwright[{extra}]'" in str(caught.value)
