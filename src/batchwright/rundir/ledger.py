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

# In an object store the signs of life are listed at most this often (see `Storage.seldom`).
LOOK_AT_OTHERS_S = 0.5

# Engines that share the work are counted at most this often on a disk.
COUNT_ENGINES_S = 0.5

# So long engines that are still starting count: those that were started together come up within
# seconds. Where one has to compile first, the others are a minute behind, and nothing waits for them.
STARTING_COUNT_S = 5.0

# Chunks, as units of claim, come before this one, all others after it.
AFTER_CHUNKS = "chunk."


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
    """The last change of a worker's heartbeat that this process saw, on its own clock.

    Attributes:
        mark: of the heartbeat.
        seen_at: when it was new.
        state: what it says, if it was worth a request.
        changed: whether it was another one before: its worker lives.
    """

    mark: str
    seen_at: float
    state: dict[str, Any] | None = None
    changed: bool = False


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
        self._holders: dict[tuple[str, int], str | None] = {}
        self._marks: dict[str, str] = {}
        self._marked_at = float("-inf")
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

    @property
    def own_fields(self) -> set[str]:
        """What each heartbeat has besides the worker's own state."""
        return {*self._identity, "beat", "at", "ended"}

    def claim(self, unit: str) -> bool:
        """Take a unit; False while another living worker holds it."""
        epoch = self._newest.get(unit, -1) + 1
        if epoch > 0 and not self._is_free(unit, epoch - 1):
            return False
        body = orjson.dumps({"worker": self.worker})
        if self.storage.create(layout.claim(unit, epoch), body):
            self._newest[unit] = epoch
            self._holders[unit, epoch] = self.worker
            return True
        self._newest[unit] = max(epoch, self._newest.get(unit, 0))
        return False

    def refresh(self, min_interval_s: float = 0.0, after: str = "", before: str = "") -> None:
        """Read which claims exist; at most every `min_interval_s`.

        Args:
            min_interval_s: nothing is read if it was so short a time ago.
            after: only of units whose names come after this one, or are it.
            before: only of units whose names come before this one; empty for all.
        """
        now = self._clock.monotonic()
        if now - self._refreshed_at < min_interval_s:
            return
        self._refreshed_at = now
        for name in self.storage.names(layout.CLAIMS, after, before):
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
        if (unit, epoch) not in self._holders:  # who made a claim never changes
            body = _object(self.storage.read_if_there(layout.claim(unit, epoch)))
            self._holders[unit, epoch] = body.get("worker")
        holder = self._holders[unit, epoch]
        return holder is None or self.is_silent(str(holder))

    def holds(self, unit: str) -> bool:
        """Whether the newest claim that is known of a unit is this worker's own."""
        return self._holders.get((unit, self._newest.get(unit, -1))) == self.worker

    def holder_lives(self, unit: str) -> bool:
        """Whether the worker that holds a unit has given a sign of life while this one watched."""
        holder = self._holders.get((unit, self._newest.get(unit, -1)))
        sighting = None if holder is None else self._sightings.get(holder)
        ended = sighting is not None and bool((sighting.state or {}).get("ended"))
        return sighting is not None and sighting.changed and not ended

    def is_silent(self, worker: str) -> bool:
        """Whether a worker has ended, is dead, or has missed its lease."""
        if worker == self.worker:
            return False
        sighting = self._sight(worker)
        state = sighting.state
        if state is not None and (state.get("ended") or _died_here(state, self._identity)):
            return True
        return self._clock.monotonic() - sighting.seen_at > self._lease_s

    def _sight(self, worker: str) -> _Sighting:
        """Look at a worker's heartbeat.

        In an object store one listing shows which of them change, and so live. Only what has not
        changed between two looks is read: its worker may have ended.
        """
        now = self._clock.monotonic()
        state = None
        if self.storage.is_local:
            state = read_heartbeat(self.storage, worker)
            mark = str(state.get("beat", -1))
        else:
            mark = self._mark_of(worker, now)
            if worker not in self._sightings:  # it may have ended long ago
                state = read_heartbeat(self.storage, worker)
        known = self._sightings.get(worker)
        if known is None or known.mark != mark:
            known = self._sightings[worker] = _Sighting(mark, now, state, known is not None)
        elif self.storage.is_local:
            known.state = state
        elif known.state is None and known.seen_at < self._marked_at:
            known.state = read_heartbeat(self.storage, worker)
        return known

    def _mark_of(self, worker: str, now: float) -> str:
        if now - self._marked_at >= self.storage.seldom(LOOK_AT_OTHERS_S):
            self._marks = self.storage.marks(layout.WORKERS)
            self._marked_at = now
        return self._marks.get(layout.heartbeat(worker).rpartition("/")[2], "")


def read_heartbeat(storage: Storage, worker: str) -> dict[str, Any]:
    """The last state that a worker published; empty if there is none."""
    return _object(storage.read_if_there(layout.heartbeat(worker)))


class Roster:
    """The heartbeats of all workers, each read again only when it has changed."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[str, tuple[str, dict[str, Any]]] = {}

    def read(self) -> dict[str, dict[str, Any]]:
        """What each worker last published, by its name."""
        marks = self._storage.marks(layout.WORKERS)
        fresh = [name for name, mark in marks.items() if self._known.get(name, ("",))[0] != mark]
        bodies = self._storage.read_each([f"{layout.WORKERS}/{name}" for name in fresh])
        for name, body in zip(fresh, bodies, strict=True):
            self._known[name] = (marks[name], _object(body))
        return {name.removesuffix(".json"): state for name, (_, state) in self._known.items()}


class EngineCount:
    """How many engines share the work of a run, by their workers' signs of life."""

    def __init__(self, storage: Storage, ledger: Ledger) -> None:
        self._every_s = storage.seldom(COUNT_ENGINES_S)
        self._ledger = ledger
        self._roster = Roster(storage)
        self._counted_at = float("-inf")
        self._first_counted_at: float | None = None
        self._count = 1

    def count(self, now: float) -> int:
        """As it was a moment ago; 1 at least. `now` is monotonic seconds.

        Those that are starting are among them for a while from the first time on: whoever asks has an
        engine that is up.
        """
        if now - self._counted_at >= self._every_s:
            self._counted_at = now
            if self._first_counted_at is None:
                self._first_counted_at = now
            starting_count = now - self._first_counted_at < STARTING_COUNT_S
            sharing = [
                name
                for name, one in self._roster.read().items()
                if one.get("role") == "infer"
                and not one.get("ended")
                and (starting_count or one.get("engine"))
            ]
            self._count = max(1, sum(not self._ledger.is_silent(name) for name in sharing))
        return self._count


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
        # Both as seconds since the machine was started: the kernel keeps that, while the time of day at
        # which it was started moves whenever the clock is set.
        started = psutil.Process(int(state["pid"])).create_time() - psutil.boot_time()
    except psutil.NoSuchProcess:
        return True
    return abs(started - (float(state["started"]) - int(state["boot"]))) > 1.0
