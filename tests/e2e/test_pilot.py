"""A pilot's rows are chunks of the run: nothing is computed twice, and the results are the same."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

from batchwright.config.job import Job
from batchwright.core.errors import TimesLost
from batchwright.foresight.promise import Promise
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.manifest import existing_run
from batchwright.rundir.state import read_state
from batchwright.rundir.storage import Storage
from tests.e2e.command import COMMAND, call, result_bytes

ROWS = 3000


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rng = random.Random(5)
    lines = [
        json.dumps({"id": f"r{row}", "prompt": "word " * rng.randint(1, 60)}) for row in range(ROWS)
    ]
    lines[7] = "{not json"
    path.write_text("\n".join(lines) + "\n")
    return path


def options(rows: Path, run_dir: Path) -> list[object]:
    return [
        rows, "--engine", "fake", "--max-tokens", "16", "--dir", run_dir,
        "--set", "engine.options.seconds_per_step=0.02", "--set", "run.max_failed=1",
    ]  # fmt: skip


def run_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_the_run_goes_on_from_the_pilot(rows: Path, tmp_path: Path) -> None:
    with_pilot, without = tmp_path / "with", tmp_path / "without"
    report = call("pilot", *options(rows, with_pilot), "--rows", 300)
    assert report["rows"] == 300
    assert report["rows_total"] == ROWS - 1
    assert report["rows_left"] == ROWS - 301
    assert report["hours"]["low"] <= report["hours"]["estimate"] <= report["hours"]["high"]
    assert json.loads((with_pilot / "pilot.json").read_text())["rows"] == 300
    status = call("status", with_pilot)
    assert status["ok"] == 300
    assert not status["complete"]

    summary = call("run", *options(rows, with_pilot))
    assert (summary["ok"], summary["rejected"]) == (ROWS - 1, 1)
    assert summary["rows_before"] == 301
    assert call("verify", with_pilot)["passed"]
    call("run", *options(rows, without))
    assert result_bytes(with_pilot) == result_bytes(without)


def test_a_run_that_has_begun_has_no_pilot(rows: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    call("run", *options(rows, run_dir), "--limit", 50)
    error = call("pilot", *options(rows, run_dir), "--limit", 50, exit_code=2)["error"]
    assert "begun without a pilot" in error["message"]


def test_the_pilot_of_a_small_job_is_the_job(rows: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    report = call("pilot", *options(rows, run_dir), "--limit", 100)
    assert (report["rows"], report["rows_left"]) == (99, 0)
    assert call("run", *options(rows, run_dir), "--limit", 100, exit_code=0)["ok"] == 99


def test_a_run_that_would_break_its_budget_ends_after_the_pilot(rows: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    budget = ["--set", "plan.max_hours=0.000001", "--set", "run.pilot_rows=200"]
    error = call("run", *options(rows, run_dir), *budget, exit_code=2)["error"]
    assert "plan.max_hours is 1e-06" in error["message"]
    assert call("status", run_dir)["ok"] == 200
    summary = call("run", *options(rows, run_dir), "--set", "plan.max_hours=5")
    assert summary["ok"] == ROWS - 1


def lose_times(run_dir: Path) -> None:
    """As if those who ran the pilot had been killed after the commits of its rows."""
    for path in (run_dir / "telemetry").glob("chunk-*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "ended": {}}))


def promise(run_dir: Path, **plan: float) -> Promise:
    storage, manifest = existing_run(run_dir)
    job = Job.model_validate({**manifest.job, "plan": {**manifest.job["plan"], **plan}})
    return Promise(storage, manifest, job, SystemClock())


def test_a_run_begins_with_a_pilot_and_tells_its_hours(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rng = random.Random(6)
    path.write_text(
        "".join(json.dumps({"prompt": "word " * rng.randint(1, 60)}) + "\n" for _ in range(4100))
    )
    run_dir = tmp_path / "run"
    small_pilot = ["--set", "run.pilot_rows=300"]
    ended = run_command("run", *options(path, run_dir), *small_pilot, "--json")
    assert ended.returncode == 0, ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("pilot of 300 rows")]
    assert "the whole job takes" in line
    report = json.loads((run_dir / "pilot.json").read_text())
    assert report["rows_total"] == 4100
    assert call("verify", run_dir)["passed"]
    lose_times(run_dir)
    without_budget, with_budget = promise(run_dir), promise(run_dir, max_hours=1.0)
    without_budget.begin(read_state(Storage(run_dir)))  # a run goes on without an estimate
    with pytest.raises(TimesLost, match="were lost"):
        with_budget.begin(read_state(Storage(run_dir)))

    none = tmp_path / "none"
    ended = run_command("run", *options(path, none), "--set", "run.pilot_rows=0", "--json")
    assert "pilot of" not in ended.stderr
    assert result_bytes(none) == result_bytes(run_dir)


def test_a_small_job_has_no_pilot(rows: Path, tmp_path: Path) -> None:
    ended = run_command("run", *options(rows, tmp_path / "run"), "--json")
    assert ended.returncode == 0
    assert "pilot of" not in ended.stderr
    assert not (tmp_path / "run" / "pilot.json").exists()
