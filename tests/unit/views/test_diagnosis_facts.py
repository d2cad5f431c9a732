"""Why a run that nobody works on is not finished, as its workers left it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from batchwright.core.findings import Finding, Weight
from batchwright.diagnose.verdict import diagnose
from batchwright.rundir import layout
from batchwright.views.diagnosis_facts import gather
from tests.unit.rundir.small_runs import SmallRun
from tests.unit.small_reports import answered_run, commit


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    """Half answered, by two workers that have ended."""
    return answered_run(tmp_path)


def found(run: SmallRun) -> list[Finding]:
    findings = diagnose(gather(run.storage, run.manifest, run.job)).findings
    return [one for one in findings if one.code == "unfinished"]


def beat(run: SmallRun, **changes: Any) -> None:
    """A newer sign of life of one of the workers."""
    path = layout.heartbeat("infer-0")
    body = orjson.loads(run.storage.read(path))
    run.storage.put(path, orjson.dumps({**body, **changes}))


def test_one_that_was_stopped_has_a_hint(run: SmallRun) -> None:
    beat(run, error={"kind": "Stopped", "message": "on request", "hint": ""})
    (finding,) = found(run)
    assert finding.weight == Weight.HINT
    assert finding.evidence == (("chunks", "2 of 4 committed"),)


def test_the_error_that_ended_it_is_told_with_its_hint(run: SmallRun) -> None:
    beat(run, error={"kind": "StorageError", "message": "no space", "hint": "Free some space."})
    (finding,) = found(run)
    assert finding.weight == Weight.BROKEN
    assert ("the error", "no space") in finding.evidence
    assert finding.remedy.startswith("Free some space. `batchwright run RUN`")


def test_a_killed_one_is_told_from_one_that_runs(run: SmallRun) -> None:
    beat(run, ended=False)
    (finding,) = found(run)
    assert finding.title == "The run was killed"
    beat(run, ended=False, at=time.time())
    assert found(run) == []


def test_one_that_is_done_is_not_unfinished(run: SmallRun) -> None:
    for chunk in (2, 3):
        commit(run, "infer-0", chunk)
    assert found(run) == []
