"""Several engines on one card: asked for, or added while running and kept if they are worth it."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from batchwright.config.load import make_job
from batchwright.executors import growth
from batchwright.foresight.survey import survey
from batchwright.rundir.manifest import open_manifest
from batchwright.rundir.storage import Storage
from batchwright.running.drive import drive
from tests.e2e.command import call

ROWS = 3000
SLOW = {"seconds_per_step": 0.1, "rows_per_step": 16}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"row {n}"}) + "\n" for n in range(ROWS)))
    return path


def events(run_dir: Path) -> list[str]:
    lines = (run_dir / "events.jsonl").read_text().splitlines()
    return [json.loads(line)["event"] for line in lines]


def test_engines_that_were_asked_for_all_start(rows: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    summary = call("run", rows, "--engine", "fake", "--limit", 200, "--dir", run_dir,
                   "--set", "run.engines_per_gpu=2", "--set", "run.chunk_rows=20")  # fmt: skip
    assert summary["ok"] == 200
    assert call("verify", run_dir)["passed"]
    assert len(list(run_dir.glob("logs/infer-*.engine.log"))) == 2


def test_an_engine_is_added_and_kept_if_it_is_worth_it(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("WINDOW_S", 2.0), ("SETTLE_S", 0.5), ("LEAST_LEFT_S", 0.0)):
        monkeypatch.setattr(growth, name, value)
    job = make_job(
        {"input": {"path": str(rows)}, "engine": {"kind": "fake", "options": SLOW}},
        {"run.chunk_rows": 50},
    )
    storage = Storage(tmp_path / "run")
    wanted = replace(survey(job), planned={"engines_per_gpu": 2})
    manifest, _ = open_manifest(storage, wanted)
    drive(storage, manifest, job, lambda progress: None, threading.Event())
    found = events(tmp_path / "run")
    assert found.count("engines_add") == 1
    assert "engines_drop" not in found, "two of these engines do twice the work"
    assert found.count("engine_up") == 2
    assert call("verify", tmp_path / "run")["passed"]
