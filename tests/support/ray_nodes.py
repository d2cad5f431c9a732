"""A Ray cluster of several nodes on one machine: nodes come, are killed, freeze, and leave nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil

T = TypeVar("T")

_RAY = str(Path(sys.executable).parent / "ray")
_PR_SET_PDEATHSIG = 1
_CLONE_NEWUTS = 0x04000000
_START_ATTEMPTS = 3
_START_TIMEOUT_S = 90.0
_GONE_TIMEOUT_S = 30.0

_STORE_BYTES = 80 << 20  # hardly more than the least that Ray takes
_SYSTEM = {
    "automatic_object_spilling_enabled": False,
    "local_fs_capacity_threshold": 0.0001,  # no disk is taken instead
    "health_check_period_ms": 1000,
}


def wait_until(reached: Callable[[], T], what: str, timeout_s: float = 120.0) -> T:
    """The first true answer; an assertion if there is none in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = reached()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"it did not happen in time: {what}")


def write_rows(path: Path, count: int) -> Path:
    """Rows of which one in a hundred has an empty prompt, and is rejected."""
    lines = [{"id": f"r{n}", "prompt": "" if n % 100 == 50 else f"row {n}"} for n in range(count)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


class RayNodes:
    """Nodes as `ray start --block` processes, all in one folder by whose name they are found again.

    Each node has a small object store, which never spills: full is full.
    """

    def __init__(self) -> None:
        # Sockets are in it, whose names must be short: not below pytest's folders.
        self._folder = Path(tempfile.mkdtemp(prefix="bwray", dir="/tmp"))
        self._nodes: dict[str, psutil.Process] = {}
        self.environ = {
            **os.environ,
            "RAY_AUTH_MODE": "disabled",
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(self._folder),  # the note of the last cluster started is there too
        }
        self.environ.pop("RAY_ADDRESS", None)
        self.address = ""

    def start_head(self, cpus: int = 0) -> None:
        """The first node, on a port that is free."""
        said = self._start(
            "head", cpus, {}, "--head", "--port=0", "--include-dashboard=false",
            f"--temp-dir={self._folder}", f"--system-config={json.dumps(_SYSTEM)}",
        )  # fmt: skip
        note = self._folder / "ray_current_cluster"  # it may come after Ray says that it runs
        self.address = wait_until(
            lambda: note.is_file() and note.read_text().strip(), f"Ray notes its address: {said}"
        )

    def add(self, name: str, cpus: int) -> None:
        """One more node, with a resource of its own name."""
        self._start(name, cpus, {name: 1000}, f"--address={self.address}")

    def kill(self, name: str) -> None:
        """End a node and everything on it in one instant, as when a machine is taken away."""
        _signal_all(self._processes_of(name, signal.SIGSTOP), signal.SIGKILL)
        self._nodes.pop(name)

    def freeze(self, name: str) -> None:
        """Stop a node as when its cable is pulled: nothing answers, no connection is closed."""
        self._processes_of(name, signal.SIGSTOP)

    def close(self) -> None:
        """End all nodes; an assertion if a process of theirs is left."""
        try:
            for name in list(self._nodes):
                self.kill(name)
            _signal_all(self.left_over(), signal.SIGKILL)
            wait_until(lambda: not self.left_over(), "no process is left", _GONE_TIMEOUT_S)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def announce_end(self, node: str) -> None:
        """Tell Ray that a node, by its id, will be taken away soon: as for a spot machine."""
        subprocess.run(
            [
                _RAY, "drain-node", "--address", self.address, "--node-id", node, "--reason",
                "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "the spot machine is wanted",
                "--deadline-remaining-seconds", "600",
            ],
            env=self.environ, check=True, capture_output=True,
        )  # fmt: skip

    def pids(self, name: str) -> set[int]:
        """Processes of a node."""
        return {one.pid for one in _tree(self._nodes[name])}

    def left_over(self) -> list[psutil.Process]:
        """Processes that have the folder of this cluster in their command or environment."""
        mark, me = str(self._folder), os.getpid()
        return [one for one in psutil.process_iter() if one.pid != me and _names(one, mark)]

    def _processes_of(self, name: str, number: int) -> list[psutil.Process]:
        """All processes of a node, each with a signal; those too that start meanwhile."""
        found: dict[int, psutil.Process] = {}
        while True:
            fresh = [one for one in _tree(self._nodes[name]) if one.pid not in found]
            if not fresh:
                return list(found.values())
            _signal_all(fresh, number)
            found |= {one.pid: one for one in fresh}

    def _start(self, name: str, cpus: int, resources: dict[str, int], *more: str) -> str:
        """Ray gives itself 30 s to start, too few on a busy machine: it is tried several times."""
        log = self._folder / f"{name}.log"
        line = [
            _RAY, "start", "--block", f"--num-cpus={cpus}", "--num-gpus=0",
            f"--resources={json.dumps(resources)}", f"--object-store-memory={_STORE_BYTES}",
            "--disable-usage-stats", "--include-log-monitor=false", *more,
        ]  # fmt: skip
        for _ in range(_START_ATTEMPTS):
            with log.open("wb") as output:
                popen = subprocess.Popen(
                    line, env=self.environ, stdout=output, stderr=output,
                    start_new_session=True, preexec_fn=partial(_become_host, name),
                )  # fmt: skip
            self._nodes[name] = psutil.Process(popen.pid)
            deadline = time.monotonic() + _START_TIMEOUT_S
            while popen.poll() is None and time.monotonic() < deadline:
                if b"Ray runtime started" in log.read_bytes():
                    return log.read_text()
                time.sleep(0.05)
            self.kill(name)
        raise AssertionError(f"no node: {log.read_text()}")


def _become_host(name: str) -> None:
    """Give the node a host name of its own, where that is allowed.

    Should the tests be killed, it ends, and its reaper ends what it has started.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if libc.unshare(_CLONE_NEWUTS) == 0:
        socket.sethostname(name)


def _tree(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _signal_all(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _names(process: psutil.Process, mark: str) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        said: list[Any] = [*process.cmdline(), *process.environ().values()]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return any(mark in word for word in said)
