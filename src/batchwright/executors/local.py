"""Workers as processes of this machine; the parent holds nothing that a restart would miss."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from batchwright.core.errors import BatchwrightError, JobError
from batchwright.rundir.locations import Location

# A worker that dies without a word (out of memory, SIGKILL) is started again this often in a
# row; whoever makes progress starts the count anew.
MAX_RESTARTS = 5


@dataclass(slots=True)
class _Process:
    role: str
    name: str
    popen: subprocess.Popen[bytes]
    gpus: str | None


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker process that is gone.

    `exit_code` is negative for a signal. `error` is what it could not go on with, where it can tell
    its parent; else it stands in its last heartbeat. One that `has_left` made room when its machine
    was to be taken away: another one goes on.
    """

    role: str
    name: str
    exit_code: int
    gpus: str | None = None
    error: BatchwrightError | None = None
    has_left: bool = False


def visible_gpus() -> list[str]:
    """Indexes (or names) of the NVIDIA cards that this process may use; empty without any."""
    own = os.environ.get("CUDA_VISIBLE_DEVICES")
    if own is not None:
        return [device.strip() for device in own.split(",") if device.strip()]
    folder = Path("/proc/driver/nvidia/gpus")
    return [str(index) for index in range(len(list(folder.iterdir())))] if folder.is_dir() else []


def share_gpus(gpus: Sequence[str], replicas: int, per_replica: int) -> list[str | None]:
    """`CUDA_VISIBLE_DEVICES` of each replica: cards of its own, while there are enough.

    More replicas than groups of cards share them in turn. None leaves the variable alone: without
    a card, and for a single replica, which may see them all.

    Raises:
        JobError: one replica needs more cards than there are.
    """
    if not gpus or replicas == 1:
        return [None] * replicas
    if per_replica > len(gpus):
        raise JobError(
            f"a replica needs {per_replica} GPUs (tensor x pipeline parallel), and this machine "
            f"shows {len(gpus)}",
            "Lower engine.options.tensor_parallel_size, or look at CUDA_VISIBLE_DEVICES.",
        )
    groups = [
        ",".join(gpus[first : first + per_replica])
        for first in range(0, len(gpus) - per_replica + 1, per_replica)
    ]
    return [groups[replica % len(groups)] for replica in range(replicas)]


class LocalExecutor:
    """Starts worker processes for a run directory, watches them and stops them.

    Args:
        location: of the run directory.
        log_dir: what a worker prints goes to a file of its own here.
    """

    def __init__(self, location: Location, log_dir: Path) -> None:
        self._location = str(location)
        self._log_dir = log_dir
        self._processes: list[_Process] = []

    max_restarts = MAX_RESTARTS
    starting = "starting workers"

    def places(self, replicas: int, gpus_each: int) -> Sequence[str | None]:
        """The cards of each replica; see `share_gpus`. Raises JobError."""
        return share_gpus(visible_gpus(), replicas, gpus_each)

    def start(self, role: str, name: str, gpus: str | None = None) -> None:
        """Start one worker; `gpus` are the only cards that it will see."""
        self._log_dir.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable, "-m", "batchwright", "worker", self._location,
            "--role", role, "--name", name, "--with-parent",
        ]  # fmt: skip
        environment = dict(os.environ)
        if gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpus
        with (self._log_dir / f"{name}.log").open("ab") as log:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # closes when this process dies: the worker sees it
                stdout=log,
                stderr=log,
                env=environment,
                # Ctrl-C is for the parent, which tells its workers in its own way.
                start_new_session=True,
            )
        self._processes.append(_Process(role, name, popen, gpus))

    def poll(self) -> list[Ended]:
        """The workers that have ended since the last call."""
        ended = []
        for process in list(self._processes):
            exit_code = process.popen.poll()
            if exit_code is not None:
                self._processes.remove(process)
                _close_stdin(process)
                ended.append(Ended(process.role, process.name, exit_code, process.gpus))
        return ended

    def stop(self, name: str) -> None:
        """Ask one worker to stop; it ends in its own time."""
        for process in self._processes:
            if process.name == name:
                process.popen.terminate()

    def kill(self, name: str) -> None:
        """End a worker that does not answer; the next poll tells of it."""
        for process in self._processes:
            if process.name == name:
                process.popen.kill()

    @property
    def running(self) -> list[str]:
        """Roles of the workers that run."""
        return [process.role for process in self._processes]

    def cancel(self, grace_s: float) -> None:
        """Ask every worker to stop; after the grace time, make it."""
        for process in self._processes:
            process.popen.terminate()
        deadline = time.monotonic() + grace_s
        for process in self._processes:
            try:
                process.popen.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
            _close_stdin(process)
        self._processes.clear()


def _close_stdin(process: _Process) -> None:
    if process.popen.stdin is not None:
        process.popen.stdin.close()
