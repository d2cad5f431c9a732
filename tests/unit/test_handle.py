from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import batchwright
from batchwright.core.errors import JobError
from batchwright.running.drive import Progress


@pytest.fixture
def described(tmp_path: Path) -> dict[str, Any]:
    """What a job file would hold."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"row {n}"}) + "\n" for n in range(30)))
    return {
        "name": "rows",
        "input": {"path": str(rows)},
        "engine": {"kind": "fake"},
        "run": {"dir": f"{tmp_path}/{{name}}"},
    }


def test_a_job_as_plain_data_is_not_changed(described: dict[str, Any]) -> None:
    before = json.dumps(described)
    job = batchwright.job(described, {"sampling.max_tokens": 3})
    assert json.dumps(described) == before
    assert job.settings.sampling.max_tokens == 3
    assert str(job.run_dir) == described["run"]["dir"].replace("{name}", "rows")


def test_a_run_can_be_watched_and_opened_from_its_folder(described: dict[str, Any]) -> None:
    seen: list[Progress] = []
    job = batchwright.job(described)
    summary = job.run(watch=seen.append)
    assert summary.counts.ok == 30
    assert seen[-1].run_dir == job.run_dir
    again = batchwright.job(str(job.run_dir))
    assert again.settings == job.settings
    assert again.verify().passed
    assert again.status().is_finished
    assert len(again.open().to_arrow()) == 30


def test_a_thread_that_is_not_the_main_one_can_run_a_job(described: dict[str, Any]) -> None:
    found: list[int] = []
    job = batchwright.job(described, run_dir=Path(described["input"]["path"]).parent / "other")
    thread = threading.Thread(target=lambda: found.append(job.run(watch=lambda _: None).counts.ok))
    thread.start()
    thread.join()
    assert found == [30]
    assert job.run_dir.name == "other"  # type: ignore[union-attr]


def test_wrong_keys_are_refused(described: dict[str, Any]) -> None:
    with pytest.raises(JobError, match="max_token"):
        batchwright.job(described, {"sampling.max_token": 3})
    job = batchwright.job(described)
    with pytest.raises(JobError, match="computed already"):
        job.export({"sampling.max_tokens": 3})
    with pytest.raises(JobError, match="not a run directory"):
        job.verify()
