"""Who works on what: claims, heartbeats and leases, without a server.

A unit of work is claimed by creating `claims/<unit>.<epoch>`. It is free again when the worker
that holds the newest claim has ended, is dead, or has been silent for longer than the lease;
then the next epoch is created. Claims only save work: what counts is decided by receipts.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil

from batchwright.core.ports import Clock
from batchwright.rundir import layout
from batchwright.rundir.storage import Storage


def new_worker_name(role: str) -> str:
    """A name that no other process has: role, host, process and chance."""
    return f"{role}-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


def _this_process() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "boot": int(psutil.boot_time()),
        "namespace": _pid_namespace(),
        "pid": os.getpid(),
        "started": psutil.Process().create_time(),
    }


def _pid_namespace() -> str:
    """Containers of one host may share its name, but a pid means another process in each."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # not Linux
        return ""


@dataclass(slots=True)
class _Sighting:
    """The last change of a worker's heartbeat that this process saw, on its own clock."""

    beat: int
    seen_at: float


class Ledger:
    """Claims units of work for one worker, and keeps its sign of life fresh.

    Leases are judged by whether a heartbeat *changes* while this process watches, so the clocks
    of the machines need not agree.
    """

    def __init__(self, storage: Storage, worker: str, clock: Clock, lease_s: float) -> None:
        self.storage = storage
        self.worker = worker
        self._clock = clock
        self._lease_s = lease_s
        self._identity = _this_process()
        self._beat = 0
        self._lock = threading.Lock()
        self._sightings: dict[str, _Sighting] = {}
        self._newest: dict[str, int] = {}
        self._refreshed_at = float("-inf")

    def heartbeat(self, state: dict[str, Any], *, ended: bool = False) -> None:
        """Publish that this worker is alive, with its counters; `ended` frees its claims."""
        with self._lock:
            self._beat += 1
            body = {
                **self._identity,
                "beat": self._beat,
                "at": self._clock.now(),
                "ended": ended,
                **state,
            }
            self.storage.put(layout.heartbeat(self.worker), orjson.dumps(body))

    def claim(self, unit: str) -> bool:
        """Take a unit; False while another living worker holds it."""
        epoch = self._newest.get(unit, -1) + 1
        if epoch > 0 and not self._is_free(unit, epoch - 1):
            return False
        body = orjson.dumps({"worker": self.worker})
        if self.storage.create(layout.claim(unit, epoch), body):
            self._newest[unit] = epoch
            return True
        self._newest[unit] = max(epoch, self._newest.get(unit, 0))
        return False

    def refresh(self, min_interval_s: float = 0.0) -> None:
        """Read which claims exist; at most every `min_interval_s`."""
        now = self._clock.monotonic()
        if now - self._refreshed_at < min_interval_s:
            return
        self._refreshed_at = now
        for name in self.storage.names(layout.CLAIMS):
            unit, _, epoch = name.rpartition(".")
            if epoch.isdecimal():  # else somebody else's file
                self._newest[unit] = max(int(epoch), self._newest.get(unit, -1))

    def is_claimed(self, unit: str) -> bool:
        """Whether anybody has ever claimed the unit, as far as is known here."""
        return unit in self._newest

    def is_free(self, unit: str) -> bool:
        """Whether a claim on the unit would succeed, by what has been read so far."""
        epoch = self._newest.get(unit, -1)
        return epoch < 0 or self._is_free(unit, epoch)

    def _is_free(self, unit: str, epoch: int) -> bool:
        holder = _object(self.storage.read_if_there(layout.claim(unit, epoch))).get("worker")
        return holder is None or self.is_silent(str(holder))

    def is_silent(self, worker: str) -> bool:
        """Whether a worker has ended, is dead, or has missed its lease."""
        if worker == self.worker:
            return False
        state = read_heartbeat(self.storage, worker)
        if state.get("ended") or _died_here(state, self._identity):
            return True
        beat = int(state.get("beat", -1))
        sighting = self._sightings.get(worker)
        now = self._clock.monotonic()
        if sighting is None or sighting.beat != beat:
            self._sightings[worker] = _Sighting(beat, now)
            return False
        return now - sighting.seen_at > self._lease_s


def read_heartbeat(storage: Storage, worker: str) -> dict[str, Any]:
    """The last state that a worker published; empty if there is none."""
    return _object(storage.read_if_there(layout.heartbeat(worker)))


def _object(raw: bytes | None) -> dict[str, Any]:
    """A JSON object; a file that a power cut tore is as good as none."""
    try:
        value = orjson.loads(raw or b"{}")
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _died_here(state: dict[str, Any], me: dict[str, Any]) -> bool:
    """Whether the worker ran on this very machine and its process is gone: no need to wait."""
    same_namespace = state.get("namespace", me["namespace"]) == me["namespace"]
    if state.get("host") != me["host"] or not same_namespace:
        return False
    if abs(int(state.get("boot", 0)) - int(me["boot"])) > 5:
        return False
    try:
        started = psutil.Process(int(state["pid"])).create_time()
    except psutil.NoSuchProcess:
        return True
    return abs(started - float(state["started"])) > 1.0
