"""The machine and this worker's processes, for telemetry: cores, memory, disks, network."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from batchwright.core.readings import HostReading, ProcessReading

_CGROUP = Path("/sys/fs/cgroup")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108

# To find the children of a process, all processes of the machine are looked at: not each time.
FAMILY_EVERY_S = 10.0

# In the command line of the process that an engine runs in.
_ENGINE_MARK = "batchwright.engines.child"


class Family:
    """This process, and the engine's processes below it.

    Args:
        monotonic: seconds that never go back.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._me = psutil.Process()
        self._engine: list[psutil.Process] = []
        self._looked_at = float("-inf")
        self._cpu_s: dict[int, float] = {}  # of the engine's processes, by pid
        self._gone_cpu_s = 0.0  # of those that are no more
        self._gone_busiest_cpu_s = 0.0  # of those that were the busiest when they ended

    @property
    def pids(self) -> set[int]:
        """Of all of them, as of the last reading."""
        return {self._me.pid, *self._cpu_s}

    def read(self) -> ProcessReading:
        """What they have used by now."""
        self._look()
        memory_bytes = self._me.memory_info().rss
        alive: dict[int, float] = {}
        for process in self._engine:
            try:
                with process.oneshot():
                    alive[process.pid] = _cpu_s(process)
                    memory_bytes += process.memory_info().rss
            except psutil.Error:  # it has ended: look again next time
                self._looked_at = float("-inf")
        self._keep_ended(alive)
        self._cpu_s = alive
        return ProcessReading(
            cpu_s=round(_cpu_s(self._me), 2),
            engine_cpu_s=round(self._gone_cpu_s + sum(alive.values()), 2),
            busiest_engine_cpu_s=round(
                self._gone_busiest_cpu_s + max(alive.values(), default=0.0), 2
            ),
            memory_bytes=memory_bytes,
        )

    def _keep_ended(self, alive: Mapping[int, float]) -> None:
        """Sums must not fall when an engine is started again."""
        ended = [seconds for pid, seconds in self._cpu_s.items() if pid not in alive]
        self._gone_cpu_s += sum(ended)
        busiest = max(self._cpu_s.values(), default=0.0)
        if busiest in ended:
            self._gone_busiest_cpu_s += busiest

    def _look(self) -> None:
        now = self._monotonic()
        if now - self._looked_at < FAMILY_EVERY_S:
            return
        self._looked_at = now
        known = {process.pid: process for process in self._engine}
        found: list[psutil.Process] = []
        for child in self._me.children():
            try:
                if _ENGINE_MARK in " ".join(child.cmdline()):
                    found += [child, *child.children(recursive=True)]
            except psutil.Error:
                continue
        self._engine = [known.get(one.pid, one) for one in found]


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


class Host:
    """The machine; of its cores and memory what this container may use.

    Args:
        cores: that this process may use.
        run_folder: whose disk to watch; None where the run is in an object store.
        cgroup: where the container's limits stand.
        monotonic: seconds that never go back.
    """

    def __init__(
        self,
        cores: int,
        run_folder: Path | None,
        cgroup: Path = _CGROUP,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cores = cores
        self._run_folder = run_folder
        self._cgroup = cgroup
        self._monotonic = monotonic
        self._worked: tuple[float, float] | None = None  # at, core seconds of work

    def read(self) -> HostReading:
        """All of it now."""
        memory_bytes, memory_total_bytes = self._memory()
        shm_bytes, shm_total_bytes = _room(_SHARED_MEMORY)
        run_bytes, run_total_bytes = _room(self._run_folder) if self._run_folder else (None, None)
        disks, net = psutil.disk_io_counters(), psutil.net_io_counters()
        free_bytes = None
        if run_bytes is not None and run_total_bytes is not None:
            free_bytes = run_total_bytes - run_bytes
        return HostReading(
            cores=self._cores,
            cpu_use=self._cpu_use(),
            memory_bytes=memory_bytes,
            memory_total_bytes=memory_total_bytes,
            disk_read_bytes=None if disks is None else disks.read_bytes,
            disk_written_bytes=None if disks is None else disks.write_bytes,
            net_received_bytes=None if net is None else net.bytes_recv,
            net_sent_bytes=None if net is None else net.bytes_sent,
            shm_bytes=shm_bytes,
            shm_total_bytes=shm_total_bytes,
            run_disk_free_bytes=free_bytes,
            run_disk_total_bytes=run_total_bytes,
        )

    def _cpu_use(self) -> float | None:
        now, worked_s = self._monotonic(), self._worked_s()
        before, self._worked = self._worked, (now, worked_s)
        if before is None or now <= before[0]:
            return None
        share = (worked_s - before[1]) / (now - before[0]) / self._cores
        return round(min(1.0, max(0.0, share)), 4)

    def _worked_s(self) -> float:
        """Core seconds of work: of the container where it has a limit of its own."""
        if _text(self._cgroup / "cpu.max")[:1].isdecimal():
            usage = keyed_numbers(_text(self._cgroup / "cpu.stat")).get("usage_usec")
            if usage is not None:
                return usage / 1e6
        times = psutil.cpu_times()  # user, nice, system, (idle, iowait,) irq, softirq, steal
        return float(sum(times[:3]) + sum(times[5:8]))

    def _memory(self) -> tuple[int, int]:
        """In use and in all, the container's where it may have less than the machine."""
        whole = psutil.virtual_memory()
        limit = _text(self._cgroup / "memory.max").strip()
        used = _text(self._cgroup / "memory.current").strip()
        if not limit.isdecimal() or not used.isdecimal() or int(limit) >= whole.total:
            return int(whole.total - whole.available), int(whole.total)
        # Pages of files that nobody has touched lately are given back when memory is short.
        spare = keyed_numbers(_text(self._cgroup / "memory.stat")).get("inactive_file", 0)
        return max(0, int(used) - spare), int(limit)


def keyed_numbers(text: str) -> dict[str, int]:
    """Lines of a name and a number, as cgroups have them."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


def _room(place: Any) -> tuple[int | None, int | None]:
    """Bytes in use and in all where a folder lies; what only root may use counts as in use."""
    try:
        found = os.statvfs(place)
    except OSError:
        return None, None
    total = found.f_blocks * found.f_frsize
    return total - found.f_bavail * found.f_frsize, total
