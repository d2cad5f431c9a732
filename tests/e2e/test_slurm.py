"""Tasks of a job array: workers with nothing but a job file, on a disk that they share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchwright import pipeline
from batchwright.rundir.storage import Storage
from tests.support.shared_run import Crew, all_ids, wait_for_receipts, write_job, write_rows


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    job = write_job(tmp_path / "job.yaml", str(tmp_path), chunk_rows=50, seconds_per_step=0.3)
    found = Crew(job, {**os.environ, "SLURM_ARRAY_TASK_ID": "0"}, tmp_path)
    yield found
    found.end()


def test_a_task_that_is_preempted_and_requeued(crew: Crew, tmp_path: Path) -> None:
    rows = 1500
    (tmp_path / "in").mkdir()
    write_rows(Storage(tmp_path / "in"), rows, files=2)
    crew.add()
    wait_for_receipts(Storage(tmp_path / "run"), 1, 60, crew)
    crew.signal(0, signal.SIGTERM, family=False)
    assert crew.wait([0], 60) == [75], crew.said(0)
    crew.add()
    assert crew.wait([1], 90) == [0], crew.said(1)
    assert "rows are done" in crew.said(1), "it has gone on"
    standing = pipeline.status(tmp_path / "run")
    assert (standing.counts.complete, standing.counts.ok) == (True, rows)
    assert all(worker["ended"] for worker in standing.workers)
    assert pipeline.verify(tmp_path / "run").passed
    assert all_ids(Storage(tmp_path / "out")) == [f"r{number}" for number in range(rows)]
