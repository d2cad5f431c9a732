"""A step as a process: started on its cards and cores, and ended with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
GRACE_S = 20.0


class Running:
    """A step's process, in a group of its own.

    Args:
        command: arguments of Python.
        log: where all that it prints goes.
        environment: all of it.
        cores: that it may use, with all that it starts.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], cores: frozenset[int]
    ) -> None:  # fmt: skip
        self.began_at = time.monotonic()
        self._ended_at: float | None = None
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=ROOT,
                start_new_session=True,
            )
        if cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self._process.pid, cores)

    @property
    def seconds(self) -> float:
        """Since it began, or that it took."""
        return (self._ended_at or time.monotonic()) - self.began_at

    def poll(self) -> int | None:
        """Its exit code; None while it runs. What it left behind in its group is killed."""
        code = self._process.poll()
        if code is not None and self._ended_at is None:
            self._ended_at = time.monotonic()
            self._signal_group(signal.SIGKILL)
        return code

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Ask it to end, then kill it, with engines that lead groups of their own."""
        family = self._family()
        self._signal_group(signal.SIGTERM)
        _, alive = psutil.wait_procs(family, timeout=grace_s)
        self._signal_group(signal.SIGKILL)
        for process in alive:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(alive, timeout=10)
        self._process.wait()
        self._ended_at = time.monotonic()

    def _family(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _signal_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return
