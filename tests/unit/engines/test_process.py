"""The engine process: deaths, hangs and a child that leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from batchwright.core.errors import EngineDied, EngineError, JobError
from batchwright.core.outcomes import Outcome
from batchwright.core.ports import EngineSettings
from batchwright.core.records import Request
from batchwright.engines.last_log import find_starts
from batchwright.engines.process import EngineProcess

FAKE = "batchwright.engines.fake:FakeEngine"
BROKEN = "tests.unit.engines.broken_engines"


def settings(**options: Any) -> EngineSettings:
    return EngineSettings("fake", "", 8, 5000, (), 256, options)


def requests(count: int, first: int = 0, length: int = 3) -> list[Request]:
    return [Request(row, [97] * length, 20, "{}") for row in range(first, first + count)]


class Children:
    """Makes engine processes and stops them after the test."""

    def __init__(self, folder: Path) -> None:
        self.log_path = folder / "logs" / "engine.log"
        self.made: list[EngineProcess] = []

    def __call__(self, engine: str = FAKE, **arguments: Any) -> EngineProcess:
        self.made.append(EngineProcess(engine, log_path=self.log_path, **arguments))
        return self.made[-1]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Children]:
    children = Children(tmp_path)
    yield children
    for child in children.made:
        child.stop()


def collect(engine: EngineProcess, count: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
    deadline = time.monotonic() + 20
    while len(outcomes) < count and time.monotonic() < deadline:
        outcomes += engine.step(0.5)
    return outcomes


def test_the_child_is_another_process_and_ends_with_stop(make: Children) -> None:
    engine = make()
    info = engine.start(settings())
    assert info.pid != os.getpid()
    assert psutil.pid_exists(info.pid)
    engine.stop()
    assert not psutil.pid_exists(info.pid)
    engine.stop()


def test_what_was_preloaded_is_started(make: Children) -> None:
    engine = make()
    engine.preload(settings())
    engine.preload(settings())
    info = engine.start(settings(rows_per_step=2))
    engine.submit(requests(4))
    assert len(collect(engine, 4)) == 4
    engine.stop()
    assert not psutil.pid_exists(info.pid)
    starts = [one for one in find_starts(make.log_path.read_text()) if one.at]
    assert len(starts) == 2, "the first one was of no use"
    assert engine.start(settings()).pid != info.pid


def test_a_fault_while_preloading_is_raised_at_the_start(make: Children) -> None:
    engine = make(f"{BROKEN}:CannotBeImported")
    engine.preload(settings())
    with pytest.raises(JobError, match="a package is missing"):
        engine.start(settings())


def test_a_child_that_still_loads_is_stopped_at_once(make: Children) -> None:
    engine = make(f"{BROKEN}:LoadsForEver")
    engine.preload(settings())
    deadline = time.monotonic() + 20
    while "loading" not in make.log_path.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine._process is not None
    child = psutil.Process(engine._process.pid)
    began = time.monotonic()
    engine.stop()
    assert not child.is_running()
    assert time.monotonic() - began < 3


def test_an_error_of_the_engine_is_raised_here_as_it_was_there(make: Children) -> None:
    with pytest.raises(JobError, match="no weights") as caught:
        make(f"{BROKEN}:RefusesJob").start(settings())
    assert caught.value.hint == "Download them."


def test_a_crash_at_start_shows_the_end_of_the_log_of_this_start_only(make: Children) -> None:
    make.log_path.parent.mkdir()
    make.log_path.write_text("of an earlier start\n")
    with pytest.raises(EngineError, match="out of luck") as caught:
        make(f"{BROKEN}:CrashesAtStart").start(settings())
    assert "exit code 1" in caught.value.message
    assert "on stdout" in caught.value.message
    assert "earlier" not in caught.value.message
    assert "starts an engine" not in caught.value.message
    written = make.log_path.read_text()
    earlier, this = find_starts(written)
    assert earlier.text == "of an earlier start\n"
    assert "on stdout" in this.text
    assert abs(this.at - time.time()) < 60


def test_a_known_line_of_the_log_becomes_the_error(make: Children) -> None:
    make.log_path.parent.mkdir()
    make.log_path.write_text("CUDA out of memory, at an earlier start\n")
    with pytest.raises(EngineError, match="leave no memory for the KV cache") as caught:
        make(f"{BROKEN}:HasNoMemory").start(settings())
    assert caught.value.message.startswith("vLLM did not start with m: ")
    assert f"{make.log_path}, line 4" in caught.value.message
    assert "gpu_memory_utilization" in caught.value.hint


def test_an_engine_that_does_not_come_up_is_killed(make: Children) -> None:
    engine = make(start_timeout_s=0.5)
    with pytest.raises(EngineError, match=r"not up after 0\.5 s"):
        engine.start(settings(startup_s=60))


def test_a_killed_child_raises_after_its_last_outcomes(make: Children) -> None:
    engine = make()
    info = engine.start(settings(hang_rows=[1]))
    engine.submit(requests(2))
    assert [outcome.row for outcome in collect(engine, 1)] == [0]
    os.kill(info.pid, signal.SIGKILL)
    with pytest.raises(EngineDied, match="SIGKILL"):
        collect(engine, 1)
    with pytest.raises(EngineDied):
        engine.step(0.0)
    engine.start(settings())
    engine.submit(requests(2))
    assert len(collect(engine, 2)) == 2


def test_an_engine_that_reports_its_death_delivers_first(make: Children) -> None:
    engine = make(f"{BROKEN}:DiesPolitely")
    engine.start(settings(rows_per_step=3))
    engine.submit(requests(5))
    assert len(collect(engine, 3)) == 3
    with pytest.raises(EngineDied, match="the core is gone"):
        collect(engine, 1)


def test_a_row_can_kill_the_child(make: Children) -> None:
    engine = make()
    engine.start(settings(kill_rows=[3]))
    engine.submit(requests(5))
    with pytest.raises(EngineDied):
        collect(engine, 1)


def test_a_hanging_engine_is_killed(make: Children) -> None:
    engine = make(hang_timeout_s=0.5)
    info = engine.start(settings(hang_engine_rows=[3]))
    engine.submit(requests(5))
    with pytest.raises(EngineDied, match="hangs"):
        collect(engine, 1)
    assert not psutil.pid_exists(info.pid)


def test_a_stopped_child_cannot_block_submit(make: Children) -> None:
    engine = make(hang_timeout_s=0.5)
    info = engine.start(settings())
    os.kill(info.pid, signal.SIGSTOP)
    began = time.monotonic()
    engine.submit(requests(200, length=4000))  # far more than a pipe holds
    assert time.monotonic() - began < 1
    with pytest.raises(EngineDied, match="hangs"):
        collect(engine, 200)


def test_a_hanging_row_is_no_hanging_engine(make: Children) -> None:
    engine = make(hang_timeout_s=0.5)
    engine.start(settings(hang_rows=[0]))
    engine.submit(requests(1))
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        assert engine.step(0.2) == []
    assert engine.gauges().running == 1
    engine.abort([0])
    engine.submit(requests(1, first=1))
    assert [outcome.row for outcome in collect(engine, 1)] == [1]


def test_both_sides_can_send_more_than_a_pipe_holds(make: Children) -> None:
    engine = make()
    engine.start(settings(longest_answer=2000))
    batches = [requests(100, first=100 * number, length=2000) for number in range(10)]
    for batch in batches:
        engine.submit(batch)
    assert sorted(outcome.row for outcome in collect(engine, 1000)) == list(range(1000))


def test_the_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from batchwright.core.ports import EngineSettings
from batchwright.core.records import Request
from batchwright.engines.process import EngineProcess
engine = EngineProcess("{FAKE}", log_path=Path(r"{tmp_path}") / "engine.log")
options = {{"hang_engine_rows": [0]}}
info = engine.start(EngineSettings("fake", "", 8, 100, (), 256, options))
engine.submit([Request(0, [97], 5, "{{}}")])  # the child is busy, and reads no message
print(info.pid, flush=True)
engine.step(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    psutil.wait_procs([child], timeout=5)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
