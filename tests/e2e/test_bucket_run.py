"""Every command on a run whose input, directory and results are in a bucket."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from batchwright import pipeline
from batchwright.cli.options import job_and_dir
from batchwright.core.errors import JobError
from batchwright.rundir import layout
from batchwright.rundir.manifest import existing_run
from batchwright.rundir.storage import Storage
from batchwright.running.drive import Progress
from batchwright.views.looking import Onlooker
from tests.support.object_store import ObjectStore
from tests.support.shared_run import all_ids, write_rows

ROWS = 900
REFUSED = 7


def never(_progress: Progress) -> None:
    return


@pytest.fixture(params=["s3", "azure"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("BATCHWRIGHT_SCRATCH", str(tmp_path / "scratch"))
    place: str = request.getfixturevalue(request.param).new_place()
    return place


def test_run_retry_verify_status_and_export(bucket: str, tmp_path: Path) -> None:
    write_rows(Storage(f"{bucket}/in"), ROWS, files=3)
    settings = [
        "engine.kind=fake", f"engine.options.refuse_rows=[{REFUSED}]", "sampling.max_tokens=4",
        f"output.path={bucket}/out", "output.format=jsonl", "run.order=prefix",
        "run.chunk_rows=300", "run.pilot_rows=50", "run.max_failed=1",
    ]  # fmt: skip
    job, place = job_and_dir(f"{bucket}/in/*.jsonl", {}, settings, f"{bucket}/run/")
    assert place == f"{bucket}/run"
    stop = threading.Event()
    summary = pipeline.run(job, place, never, stop)
    assert (summary.counts.ok, summary.counts.failed) == (ROWS - 1, 1)
    assert summary.results == (f"{bucket}/out/results-00000.jsonl",)
    assert pipeline.diagnose(place).findings == ()
    results = Storage(f"{bucket}/out")
    assert all_ids(results) == [f"r{number}" for number in range(ROWS)]
    before = results.read("results-00000.jsonl")

    again, same = job_and_dir(place, {}, [], None)
    assert (again, same) == (job, place), "a run in a bucket is a source like its job file"
    retried = pipeline.retry(place, never, stop)
    assert retried.rows_now == 1
    assert retried.counts.failures == {"engine_refused": 1}
    proof = pipeline.verify(place)
    assert proof.passed, proof.problems
    assert retried.report == f"{bucket}/run/report.html"
    assert b"refused on request" in Storage(place).read(layout.REPORT)
    look = Onlooker(*pipeline.open_run(place)).look()
    assert (look.phase, [one.row for one in look.failures]) == ("finished", [REFUSED])
    standing = pipeline.status(place)
    assert standing.counts.complete
    assert all(worker["ended"] for worker in standing.workers)
    local = {"output.path": str(tmp_path / "local"), "output.format": "jsonl"}
    (file,) = pipeline.export(place, local, lambda _rows: None)
    lines = Path(file).read_bytes()
    assert [json.loads(line)["row"] for line in lines.splitlines()] == list(range(ROWS))
    assert len(lines.splitlines()) == len(before.splitlines())

    storage, _ = existing_run(place)
    events = [json.loads(line)["event"] for line in storage.read_log(layout.EVENTS).splitlines()]
    assert events.count("run_started") == 2
    assert "order_decided" in events
    assert not list((tmp_path / "scratch").rglob("*.parquet")), "nothing large stays behind"


def test_wrong_keys_end_before_anything_starts(
    s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(JobError, match="SignatureDoesNotMatch"):
        job_and_dir(f"{s3.new_place()}/in/x.jsonl", {}, ["engine.kind=fake"], None)
