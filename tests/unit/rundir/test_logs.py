"""The log of each worker, and all of them by time, in a folder and in a bucket."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchwright.cli.app import app
from batchwright.config.job import Run
from batchwright.core.errors import JobError
from batchwright.core.log_levels import parse_levels
from batchwright.rundir import layout
from batchwright.rundir.events import Events
from batchwright.rundir.ledger import read_heartbeat
from batchwright.rundir.logs import RunLogs, logging_to
from batchwright.rundir.storage import Storage
from batchwright.running.roles import attend
from tests.unit.rundir.small_runs import ManualClock, prompts, small_run

ENGINE = logging.getLogger("batchwright.engine")
WRITE = logging.getLogger("batchwright.write")


@pytest.fixture(params=["folder", "bucket"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "folder":
        return Storage(tmp_path / "run")
    return Storage(request.getfixturevalue("s3").new_place() + "/run")


def test_levels_are_one_text() -> None:
    assert parse_levels("") == {"": "info"}
    assert parse_levels("warning, engine=debug") == {"": "warning", "engine": "debug"}
    with pytest.raises(ValueError, match="loud: there are debug"):
        parse_levels("loud")
    with pytest.raises(ValueError, match="there are the stages"):
        parse_levels("motor=debug")
    with pytest.raises(ValueError, match="there are the stages"):
        Run(log_level="motor=debug")


def test_lines_of_all_workers_come_by_time_and_each_once(storage: Storage) -> None:
    logs = RunLogs(storage)
    with logging_to(storage, "infer-1", "info,engine=debug"):
        ENGINE.debug("feeds", extra={"figures": {"rows": 3}})
        WRITE.debug("not asked for")
    with logging_to(storage, "prepare-1", "warning"):
        ENGINE.info("not asked for either")
        WRITE.warning("slow", extra={"figures": {"why": "two words", "seconds": 1.5}})
    Events(storage, "driver-1", ManualClock()).write("worker_died", name="x")
    storage.flush_logs()
    lines = list(logs.new_lines())
    assert [(one.worker, one.stage, one.level, one.event) for one in lines] == [
        ("driver-1", "run", "warning", "worker died"),
        ("infer-1", "engine", "debug", "feeds"),
        ("prepare-1", "write", "warning", "slow"),
    ]
    assert lines[2].as_text().endswith('warning prepare-1 write: slow why="two words" seconds=1.5')
    assert list(logs.new_lines()) == []
    with logging_to(storage, "infer-1", "info"):
        ENGINE.error("later")
    storage.flush_logs()
    assert [one.event for one in logs.new_lines()] == ["later"]
    assert [one.event for one in RunLogs(storage, "prepare", "warning").new_lines()] == ["slow"]


def test_torn_lines_and_those_of_others_are_left_out(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    with logging_to(storage, "w", "info"):
        ENGINE.info("whole")
    path = tmp_path / layout.worker_log("w")
    path.write_bytes(path.read_bytes() + b'[1]\n{"at": "x"}\n{"at": 1, "worker"')
    logs = RunLogs(storage)
    assert [one.event for one in logs.new_lines()] == ["whole"]
    path.write_bytes(path.read_bytes() + b': "w", "event": "late_end"}\n')
    assert [one.event for one in logs.new_lines()] == ["late end"]


def test_nothing_is_logged_outside_and_levels_are_set_anew(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    with logging_to(storage, "w", "info,engine=error"):
        ENGINE.info("too low")
    ENGINE.error("outside")
    with logging_to(storage, "w", "info"):
        ENGINE.info("now")
    assert [one.event for one in RunLogs(storage).new_lines()] == ["now"]
    assert not logging.getLogger("batchwright").handlers


def test_the_environment_beats_the_job_and_shows_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_LOG", "debug")
    with logging_to(Storage(tmp_path), "w", "error"):
        ENGINE.debug("seen")
    assert "debug   w engine: seen" in capsys.readouterr().err
    monkeypatch.setenv("BATCHWRIGHT_LOG", "motor=debug")
    with pytest.raises(JobError, match="motor"), logging_to(Storage(tmp_path), "w", "error"):
        pass


def test_a_wrong_variable_is_told_to_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever drives it would start the worker again and again."""
    run = small_run(tmp_path, prompts(1))
    monkeypatch.setenv("BATCHWRIGHT_LOG", "loud")
    with pytest.raises(JobError):
        attend(run.storage.root, "prepare", "p-1", threading.Event())
    error = read_heartbeat(run.storage, "p-1")["error"]
    assert error["message"].startswith("BATCHWRIGHT_LOG=loud: loud: there are debug")


def test_a_place_that_refuses_lines_does_not_end_the_work(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    (tmp_path / layout.LOGS).write_text("not a folder")
    with logging_to(storage, "w", "info"):
        ENGINE.info("lost")


def test_a_fault_of_a_worker_stands_in_its_log_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run(tmp_path, prompts(3))
    monkeypatch.setattr("batchwright.running.roles.SplitQueue", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        attend(run.storage.root, "prepare", "p-1", threading.Event())
    (fault,) = RunLogs(run.storage, level="error").new_lines()
    assert (fault.worker, fault.event) == ("p-1", "worker failed")
    assert "ZeroDivisionError" in fault.traceback
    assert "roles.py" in fault.traceback


def test_a_role_tells_what_it_did_and_the_command_shows_it(tmp_path: Path) -> None:
    run = small_run(tmp_path, prompts(3), run__order="file")
    attend(run.storage.root, "prepare", "p-1", threading.Event())
    result = CliRunner().invoke(app, ["logs", str(run.storage.root), "--json"])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    events = [line["event"] for line in lines if line["worker"] == "p-1"]
    assert events == ["worker starts", "puts the rows in order", "split prepared", "worker ends"]
    prepared = lines[events.index("split prepared")]["figures"]
    assert (prepared["rows"], prepared["rejected"]) == (3, 0)
    shown = CliRunner().invoke(app, ["logs", str(run.storage.root), "--worker", "p-1"])
    assert "p-1 prepare: split prepared split=0" in shown.stdout
    wrong = CliRunner().invoke(app, ["logs", str(run.storage.root), "--level", "loud"])
    assert (wrong.exit_code, "there are debug" in wrong.stderr) == (2, True)


def test_following_ends_with_the_run(tmp_path: Path) -> None:
    run = small_run(tmp_path, prompts(1))
    run.storage.put(layout.SUCCESS, b"")
    result = CliRunner().invoke(app, ["logs", str(run.storage.root), "--follow"])
    assert result.exit_code == 0
