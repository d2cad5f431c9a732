from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from batchwright.core.errors import JobError
from batchwright.foresight.promise import POOL, Promise, with_pilot
from tests.unit.rundir.small_runs import ManualClock, SmallRun, prompts, small_run


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    return small_run(tmp_path, {"a.jsonl": prompts(4)})


def test_a_run_chooses_its_pilot_from_the_first_rows(run: SmallRun) -> None:
    manifest = with_pilot(run.manifest)
    assert (manifest.pilot_rows, manifest.pilot_pool) == (1000, 1000 * POOL)


def test_a_budget_depends_on_all_rows(run: SmallRun) -> None:
    job = {**run.manifest.job, "plan": {**run.manifest.job["plan"], "max_hours": 1.0}}
    assert with_pilot(replace(run.manifest, job=job)).pilot_pool == 0


def test_a_budget_without_a_pilot_is_refused(run: SmallRun) -> None:
    plan = run.job.plan.model_copy(update={"max_usd": 5.0})
    job = run.job.model_copy(update={"plan": plan})
    promise = Promise(run.storage, run.manifest, job, ManualClock())
    with pytest.raises(JobError, match="has begun without one"):
        promise.begin(run.state())


def test_without_a_pilot_there_is_nothing_to_say(run: SmallRun) -> None:
    Promise(run.storage, run.manifest, run.job, ManualClock()).begin(run.state())
    assert not run.storage.names("pilot.json")
