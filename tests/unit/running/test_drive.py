from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from batchwright.core import errors
from batchwright.core.errors import BatchwrightError, EngineError, TooManyFailures
from batchwright.executors.local import MAX_RESTARTS, Ended
from batchwright.rundir import layout
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.ledger import Ledger
from batchwright.rundir.state import Counts
from batchwright.running.drive import _Driver, drive, reported_error
from batchwright.running.progress import RATE_WINDOW_S, Rate, run_phase
from tests.unit.rundir.small_runs import SmallRun, prompts, small_run
from tests.unit.rundir.test_state import put_receipt, receipt_of


def counts_of(rows: int, rejected: int = 0, ok: int = 0, failed: int = 0, **more: Any) -> Counts:
    usual = {"truncated": 0, "prompt_tokens": 0, "completion_tokens": 0, "chunks": 9,
             "chunks_done": 0, "ordered": False}  # fmt: skip
    return Counts(rows=rows, rejected=rejected, ok=ok, failed=failed, **{**usual, **more})


def test_a_rate_needs_two_readings() -> None:
    rate = Rate()
    assert rate.add(100.0, 50, 500) == (0.0, 0.0)
    assert rate.add(110.0, 150, 1500) == (10.0, 100.0)


def test_a_rate_follows_the_last_window() -> None:
    rate = Rate()
    for second in range(100):
        rate.add(float(second), second * 10, 0)
    for second in range(100, 100 + int(RATE_WINDOW_S) + 1):
        rows_per_s, _ = rate.add(float(second), 990, 0)
    assert rows_per_s == 0.0


def test_a_rate_is_never_below_zero() -> None:
    """A worker that died takes its uncommitted rows with it."""
    rate = Rate()
    rate.add(0.0, 100, 1000)
    assert rate.add(1.0, 60, 400) == (0.0, 0.0)


def test_a_rate_survives_readings_far_apart() -> None:
    rate = Rate()
    rate.add(0.0, 0, 0)
    rate.add(1000.0, 1000, 0)
    assert rate.add(2000.0, 3000, 0)[0] == pytest.approx(2.0)


@pytest.mark.parametrize(
    "kind", ["InputError", "JobError", "EngineError", "StorageError", "Stopped", "VerifyError"]
)
def test_an_error_comes_back_as_what_it_was(kind: str) -> None:
    heartbeat = {"error": {"kind": kind, "message": "what", "hint": "how"}}
    error = reported_error(heartbeat)
    assert type(error) is getattr(errors, kind)
    assert (error.message, error.hint) == ("what", "how")


def test_an_error_of_a_newer_version_is_still_an_error() -> None:
    error = reported_error({"error": {"kind": "QuiteNew", "message": "what", "hint": ""}})
    assert type(error) is BatchwrightError
    assert error.message == "what"


@pytest.mark.parametrize("heartbeat", [{}, {"error": None}, {"ended": True, "phase": "x"}])
def test_a_heartbeat_without_an_error_reports_none(heartbeat: dict[str, Any]) -> None:
    assert reported_error(heartbeat) is None


def test_the_phase_is_the_furthest_of_the_living_workers() -> None:
    running, gone = {"phase": "running"}, {"phase": "running", "ended": True}
    assert run_phase([{"phase": "waiting for rows"}, running], counts_of(0)) == "running"
    assert (
        run_phase([gone, {"phase": "starting the engine"}], counts_of(0)) == "starting the engine"
    )
    assert run_phase([], counts_of(0)) == "starting workers"


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    files = {f"{name}.jsonl": prompts(10, 10 * at) for at, name in enumerate("abcd")}
    return small_run(tmp_path, files, run__chunk_rows=5)


@pytest.fixture
def driver(run: SmallRun) -> _Driver:
    return _Driver(run.storage, run.manifest, run.job)


@pytest.mark.parametrize(
    "counts",
    [
        counts_of(50, rejected=50),  # too few to judge
        counts_of(1000, rejected=40, ok=60),
        counts_of(1000, ok=50, failed=50),  # exactly the limit
        counts_of(200, rejected=200, ordered=True, chunks=0),  # done: nothing can be saved
    ],
)
def test_few_failures_do_not_stop_the_run(driver: _Driver, counts: Counts) -> None:
    driver._judge_rows(counts)


def test_rejections_count_against_the_rows_read_not_against_those_answered(
    driver: _Driver,
) -> None:
    """Rows are rejected before the engine is up: 1 % of many must not look like all of few."""
    driver._judge_rows(counts_of(20_000, rejected=200, ok=0))
    driver._judge_rows(counts_of(20_000, rejected=200, ok=150))


@pytest.mark.parametrize(
    "counts",
    [counts_of(1000, rejected=600), counts_of(10_000, ok=40, failed=60),
     counts_of(300, rejected=100, ok=10, failed=90)],
)  # fmt: skip
def test_a_job_that_is_wrong_as_a_whole_is_stopped(driver: _Driver, counts: Counts) -> None:
    with pytest.raises(TooManyFailures, match="something is wrong with the whole job") as caught:
        driver._judge_rows(counts)
    assert caught.value.exit_code == 3
    assert str(counts.rejected) in caught.value.message


def test_the_limit_may_be_lifted(run: SmallRun, tmp_path: Path) -> None:
    free = small_run(tmp_path, tmp_path / "data", run_dir="free", run__stop_at_failed=1.0)
    _Driver(free.storage, free.manifest, free.job)._judge_rows(counts_of(1000, failed=900))


def test_rows_expected_grow_from_an_estimate_to_the_number(run: SmallRun, driver: _Driver) -> None:
    assert driver.progress().rows_expected == 0
    run.prepare([0])
    run.order()
    driver._look_at_files()
    assert driver.progress().rows_expected == 40
    run.prepare([1, 2, 3])
    run.order()
    driver._look_at_files()
    progress = driver.progress()
    assert (progress.rows_expected, progress.counts.ordered) == (40, True)


def test_rows_expected_are_no_more_than_the_limit(tmp_path: Path) -> None:
    files = {f"{name}.jsonl": prompts(10, 10 * at) for at, name in enumerate("abcd")}
    run = small_run(tmp_path, files, input__limit=12)
    run.prepare([0])
    run.order()
    driver = _Driver(run.storage, run.manifest, run.job)
    driver._look_at_files()
    assert driver.progress().rows_expected == 12


def test_progress_counts_rows_that_are_finished_but_not_committed(
    run: SmallRun, driver: _Driver
) -> None:
    run.prepare()
    run.order()
    put_receipt(run, receipt_of(0, 5, {"timeout": 1}))
    driver._names.append("infer-1")
    ledger = Ledger(run.storage, "infer-1", SystemClock(), 60)
    ledger.heartbeat({"role": "infer", "phase": "running", "uncommitted": 7,
                      "completion_tokens": 70})  # fmt: skip
    driver._look_at_files()
    progress = driver.progress()
    assert (progress.rows_done, progress.counts.settled, progress.phase) == (12, 5, "running")


def test_progress_never_passes_the_end(run: SmallRun, driver: _Driver) -> None:
    run.prepare()
    run.order()
    driver._names.append("infer-1")
    ledger = Ledger(run.storage, "infer-1", SystemClock(), 60)
    ledger.heartbeat({"role": "infer", "uncommitted": 1000})
    driver._look_at_files()
    assert driver.progress().rows_done == 40


@pytest.fixture
def started(driver: _Driver, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The roles that the driver starts, instead of processes."""
    roles: list[str] = []
    monkeypatch.setattr(driver._executor, "start", lambda role, name, gpus: roles.append(role))
    return roles


def test_a_worker_that_died_without_a_word_is_started_again_but_not_for_ever(
    driver: _Driver, started: list[str]
) -> None:
    for number in range(MAX_RESTARTS):
        driver._judge_end(Ended("infer", f"w{number}", -9))
    assert started == ["infer"] * MAX_RESTARTS
    with pytest.raises(EngineError, match="exit code -9"):
        driver._judge_end(Ended("infer", "last", -9))


def test_a_worker_that_makes_progress_may_die_more_often(
    run: SmallRun, driver: _Driver, started: list[str]
) -> None:
    run.prepare()
    run.order()
    for number in range(MAX_RESTARTS + 3):
        put_receipt(run, receipt_of(number, 5, {}))
        driver._look_at_files()
        driver._judge_end(Ended("infer", f"w{number}", -9))
    assert len(started) == MAX_RESTARTS + 3


def test_a_worker_that_ended_well_is_not_started_again(driver: _Driver, started: list[str]) -> None:
    driver._judge_end(Ended("prepare", "w", 0))
    assert started == []


def test_a_worker_that_left_its_machine_goes_on_elsewhere_and_counts_as_no_death(
    run: SmallRun, driver: _Driver, started: list[str]
) -> None:
    body = {"kind": "Stopped", "message": "stopped", "hint": ""}
    Ledger(run.storage, "w", SystemClock(), 60).heartbeat({"error": body}, ended=True)
    for _ in range(MAX_RESTARTS + 3):
        driver._judge_end(Ended("infer", "w", 75, has_left=True))
    driver._judge_end(Ended("prepare", "p", 0, has_left=True))
    assert started == ["infer"] * (MAX_RESTARTS + 3) + ["prepare"]


def test_nothing_is_prepared_again_once_all_rows_are_in_order(
    run: SmallRun, driver: _Driver, started: list[str]
) -> None:
    run.prepare()
    run.order()
    driver._look_at_files()
    driver._judge_end(Ended("prepare", "p", -9))
    driver._judge_end(Ended("prepare", "p", 0, has_left=True))
    assert started == []


def test_a_worker_s_own_error_is_passed_on(
    run: SmallRun, driver: _Driver, started: list[str]
) -> None:
    body = {"kind": "InputError", "message": "rows.jsonl: damaged", "hint": "mend it"}
    Ledger(run.storage, "w", SystemClock(), 60).heartbeat({"error": body}, ended=True)
    with pytest.raises(errors.InputError, match=r"rows\.jsonl: damaged"):
        driver._judge_end(Ended("prepare", "w", 3))
    assert started == []


def test_a_traceback_is_shown_by_its_last_line(
    run: SmallRun, driver: _Driver, started: list[str]
) -> None:
    run.storage.put(f"{layout.LOGS}/w.log", b"Traceback\n  ...\nValueError: seven\n\n")
    with pytest.raises(BatchwrightError, match="a worker failed: ValueError: seven") as caught:
        driver._judge_end(Ended("infer", "w", 1))
    assert caught.value.exit_code == 1
    with pytest.raises(BatchwrightError, match="it left no word"):
        driver._judge_end(Ended("infer", "nobody", 1))


def test_a_finished_run_starts_nothing(run: SmallRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run.prepare()
    run.order()
    for number in range(8):
        put_receipt(run, receipt_of(number, 5, {}))
    monkeypatch.setattr("batchwright.executors.local.LocalExecutor.start", None)
    seen: list[int] = []
    drive(run.storage, run.manifest, run.job, lambda p: seen.append(p.rows_done),
          threading.Event())  # fmt: skip
    assert seen == [40]
