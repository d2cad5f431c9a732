"""Tasks of a job array: workers with nothing but a job file, on a disk that they share."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
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


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "slurm.md"

# A step is no child of the script, and gets signals of its own; `srun` ends as it does.
SRUN = """#!/bin/bash
setsid "$@" & echo $! > step.new; mv step.new step
wait $!
exit $?
"""


def stand_ins(folder: Path) -> None:
    """The commands that the page's script calls."""
    texts = {
        "srun": SRUN,
        "scontrol": '#!/bin/bash\necho "$@" >> requeued\n',
        "batchwright": f'#!/bin/bash\nexec {sys.executable} -m batchwright "$@"\n',
    }
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def test_the_pages_script_at_its_time_limit(crew: Crew, tmp_path: Path) -> None:
    (script,) = re.findall(r"```text\n(#!/bin/bash\n.*?)```", PAGE.read_text(), re.DOTALL)
    (wanted,) = re.findall(r"^#SBATCH --signal=(\S+)$", script, re.MULTILINE)
    (tmp_path / "task.sh").write_text(script)
    stand_ins(tmp_path / "bin")
    (tmp_path / "in").mkdir()
    write_rows(Storage(tmp_path / "in"), 1500, files=2)
    environment = {
        **crew.environment, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "42",
    }  # fmt: skip

    def task(**more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["bash", "task.sh"],
            cwd=tmp_path,
            env={**environment, **more},
            stderr=subprocess.DEVNULL,
        )

    with task() as first:
        wait_for_receipts(Storage(tmp_path / "run"), 1, 60, crew)
        step = int((tmp_path / "step").read_text())
        # What Slurm does at that time: with B: the script is told, else its steps.
        os.kill(first.pid if wanted.startswith("B:") else step, signal.SIGTERM)
        assert first.wait(60) == 75
    assert (tmp_path / "requeued").read_text() == "requeue 42\n"
    with task(SLURM_RESTART_COUNT="1") as again:
        assert again.wait(90) == 0
    assert (tmp_path / "requeued").read_text() == "requeue 42\n"
    assert pipeline.verify(tmp_path / "run").passed
