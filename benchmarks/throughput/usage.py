"""CPU seconds and memory of a process and all that it starts, looked at from outside."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

import psutil

LOOK_EVERY_S = 0.5


def role_of(command: str) -> str:
    """What a process of batchwright is there for, by its command line."""
    for mark, role in (
        ("--role prepare", "prepare"),
        ("--role infer", "worker"),
        ("engines.child", "engine"),
        ("multiprocessing", "engine"),
        ("EngineCore", "engine core"),
        ("VLLM::", "engine core"),
    ):
        if mark in command:
            return role
    return "main"


class Usage:
    """Looks at a process tree twice a second, until it is left.

    A look from outside, because the usual sum over children (`getrusage`) leaves out processes
    that nobody waited for, and vLLM's core is one where its parent is killed.
    """

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu_s: dict[tuple[int, float], tuple[str, float]] = {}
        self._samples: list[tuple[float, dict[str, float]]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="usage", daemon=True)
        self.peak_rss_bytes = 0

    def __enter__(self) -> Usage:
        self.look()
        self._start = self.cpu_by_role()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.look()
        self._ended.set()
        self._thread.join()

    def look(self) -> None:
        """Take note of every process that is there now."""
        try:
            processes = [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return
        rss = 0
        for process in processes:
            try:
                with process.oneshot():
                    rss += process.memory_info().rss
                    times = process.cpu_times()
                    key = process.pid, process.create_time()
                    # A process that is about to end has no command line any more.
                    role, _ = self._cpu_s.get(key) or (role_of(" ".join(process.cmdline())), 0.0)
                    self._cpu_s[key] = role, times.user + times.system
            except psutil.Error:
                continue
        self.peak_rss_bytes = max(self.peak_rss_bytes, rss)
        self._samples.append((time.time(), self.cpu_by_role()))

    def end_rest(self) -> int:
        """End what was seen and still runs once its root is gone; returns how many that were.

        A server that outlives its parent is no child of anybody here, so `kill_tree` misses it.
        """
        rest = [process for pid, began in self._cpu_s if (process := still(pid, began))]
        for process in rest:
            kill_tree(process.pid)
        return len(rest)

    def cpu_by_role(self) -> dict[str, float]:
        """CPU seconds by role since the processes began, as last seen."""
        found: dict[str, float] = {}
        for role, seconds in list(self._cpu_s.values()):
            found[role] = found.get(role, 0.0) + seconds
        return found

    def spent_s(self) -> dict[str, float]:
        """CPU seconds by role since `with` was entered."""
        return difference(self.cpu_by_role(), self._start)

    def spent_between(self, start: float, end: float) -> dict[str, float]:
        """CPU seconds by role between two moments, to within half a second of looking."""
        return difference(at(self._samples, end), at(self._samples, start))

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            self.look()


def still(pid: int, began: float) -> psutil.Process | None:
    """The process of this id and start, if it runs; an id alone may be somebody else's by now."""
    try:
        process = psutil.Process(pid)
        same = process.create_time() == began and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return None
    return process if same else None


def difference(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """What has been added, by role."""
    return {role: round(seconds - before.get(role, 0.0), 2) for role, seconds in now.items()}


def at(samples: Sequence[tuple[float, dict[str, float]]], moment: float) -> dict[str, float]:
    """Counters at a moment, on the straight line between the two looks around it."""
    after = next((n for n, (when, _) in enumerate(samples) if when >= moment), len(samples) - 1)
    (late, then), (early, before) = samples[after], samples[max(0, after - 1)]
    share = 1.0 if late <= early else min(1.0, max(0.0, (moment - early) / (late - early)))
    return {
        role: before.get(role, 0.0) + share * (seconds - before.get(role, 0.0))
        for role, seconds in then.items()
    }


def kill_tree(pid: int) -> None:
    """End a process and all that it started."""
    try:
        root = psutil.Process(pid)
        processes = [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        return
    each: Callable[[psutil.Process], None] = psutil.Process.kill
    for process in processes:
        try:
            each(process)
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=10)
