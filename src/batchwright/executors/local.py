"""Workers as processes of this machine; the parent holds nothing that a restart would miss."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

# A worker that dies without a word (out of memory, SIGKILL) is started again this often in a
# row; whoever makes progress starts the count anew.
MAX_RESTARTS = 5


@dataclass(slots=True)
class _Process:
    role: str
    name: str
    popen: subprocess.Popen[bytes]


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker process that is gone. `exit_code` is negative for a signal."""

    role: str
    name: str
    exit_code: int


class LocalExecutor:
    """Starts worker processes for a run directory, watches them and stops them.

    Args:
        run_dir: the run directory.
        log_dir: what a worker prints goes to a file of its own here.
    """

    def __init__(self, run_dir: Path, log_dir: Path) -> None:
        self._run_dir = run_dir
        self._log_dir = log_dir
        self._processes: list[_Process] = []

    def start(self, role: str, name: str) -> None:
        """Start one worker."""
        self._log_dir.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable, "-m", "batchwright", "worker", str(self._run_dir),
            "--role", role, "--name", name, "--with-parent",
        ]  # fmt: skip
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
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
        self._processes.append(_Process(role, name, popen))

    def poll(self) -> list[Ended]:
        """The workers that have ended since the last call."""
        ended = []
        for process in list(self._processes):
            exit_code = process.popen.poll()
            if exit_code is not None:
                self._processes.remove(process)
                _close_stdin(process)
                ended.append(Ended(process.role, process.name, exit_code))
        return ended

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
