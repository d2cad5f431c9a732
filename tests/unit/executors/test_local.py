from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from batchwright.core.errors import JobError
from batchwright.executors.local import LocalExecutor, share_gpus, visible_gpus

# Stands in for the interpreter: says what it was told, then does what its role says.
WORKER = f"""#!{sys.executable}
import os, signal, sys, time
role = sys.argv[sys.argv.index("--role") + 1]
print("arguments", *sys.argv[1:], flush=True)
if role == "fails":
    sys.exit("no luck")
if role == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if role == "orphan":
    sys.stdin.read()
if role == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)
if role in ("waits", "stubborn"):
    time.sleep(60)
"""


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalExecutor]:
    script = tmp_path / "python"
    script.write_text(WORKER)
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def noting(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", noting)
    yield LocalExecutor(tmp_path / "run", tmp_path / "logs")
    for process in started:  # what a test that fails leaves must not disturb the next one
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()


def ended(executor: LocalExecutor) -> tuple[str, str, int]:
    """The next worker that ends."""
    (process,) = executor._processes
    process.popen.wait(20)
    (one,) = executor.poll()
    return one.role, one.name, one.exit_code


def test_a_worker_is_a_process_with_a_log_of_its_own(
    executor: LocalExecutor, tmp_path: Path
) -> None:
    executor.start("ends", "w1")
    assert executor.running == ["ends"]
    assert ended(executor) == ("ends", "w1", 0)
    assert executor.running == []
    assert executor.poll() == []
    log = (tmp_path / "logs" / "w1.log").read_text()
    assert f"worker {tmp_path / 'run'} --role ends --name w1" in log


@pytest.mark.parametrize(("role", "exit_code"), [("fails", 1), ("killed", -9)])
def test_how_it_ended_is_told(executor: LocalExecutor, role: str, exit_code: int) -> None:
    executor.start(role, "w")
    assert ended(executor) == (role, "w", exit_code)


def test_what_it_said_at_the_end_stands_in_the_log(executor: LocalExecutor, tmp_path: Path) -> None:
    executor.start("fails", "w")
    ended(executor)
    assert "no luck" in (tmp_path / "logs" / "w.log").read_text()


def test_cancel_ends_every_worker(executor: LocalExecutor) -> None:
    executor.start("waits", "w1")
    executor.start("waits", "w2")
    pids = [process.popen.pid for process in executor._processes]
    executor.cancel(grace_s=20)
    assert executor.running == []
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_cancel_ends_a_worker_that_does_not_listen(executor: LocalExecutor, tmp_path: Path) -> None:
    executor.start("stubborn", "w")
    pid = executor._processes[0].popen.pid
    log = tmp_path / "logs" / "w.log"
    while "ready" not in log.read_text():
        os.sched_yield()
    executor.cancel(grace_s=0)
    assert not psutil.pid_exists(pid)


def test_a_worker_sees_that_its_parent_is_gone(executor: LocalExecutor) -> None:
    executor.start("orphan", "w")
    process = executor._processes[0].popen
    assert process.poll() is None
    assert process.stdin is not None
    process.stdin.close()  # what the kernel does when the parent dies
    assert ended(executor) == ("orphan", "w", 0)


def test_a_worker_is_not_in_the_parent_s_session(executor: LocalExecutor) -> None:
    """Ctrl-C in the terminal is for the parent alone."""
    executor.start("waits", "w")
    assert os.getsid(executor._processes[0].popen.pid) != os.getsid(0)
    executor.cancel(5)


@pytest.mark.parametrize("way", ["poll", "cancel"])
def test_no_pipe_is_left_open(executor: LocalExecutor, way: str) -> None:
    """A driver that restarts workers for weeks must not run out of file descriptors."""
    before = psutil.Process().num_fds()
    executor.start("ends" if way == "poll" else "waits", "w")
    if way == "poll":
        ended(executor)
    else:
        executor.cancel(20)
    assert psutil.Process().num_fds() == before


@pytest.mark.parametrize(
    ("gpus", "replicas", "per_replica", "shared"),
    [
        ([], 2, 1, [None, None]),
        (["0", "1"], 1, 2, [None]),
        (["0", "1"], 2, 1, ["0", "1"]),
        (["3", "5", "7", "9"], 2, 2, ["3,5", "7,9"]),
        (["0", "1"], 3, 1, ["0", "1", "0"]),
        (["0", "1", "2"], 2, 2, ["0,1", "0,1"]),
    ],
)
def test_each_replica_has_cards_of_its_own(
    gpus: list[str], replicas: int, per_replica: int, shared: list[str | None]
) -> None:
    assert share_gpus(gpus, replicas, per_replica) == shared


def test_a_replica_that_needs_more_cards_than_there_are_is_refused() -> None:
    with pytest.raises(JobError, match="needs 4 GPUs"):
        share_gpus(["0", "1"], 2, 4)


def test_the_cards_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 4")
    assert visible_gpus() == ["2", "4"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []
