"""Which of a run's workers are still there, as far as this machine can tell."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from batchwright.rundir.clock import SystemClock
from batchwright.rundir.ledger import Ledger, new_worker_name
from batchwright.rundir.storage import Storage


class Presence(StrEnum):
    """Whether a worker is there: `gone` was killed on this machine, `silent` missed its lease."""

    RUNNING = "running"
    ENDED = "ended"
    GONE = "gone"
    SILENT = "silent"


class Attendance:
    """Tells who is there; asked again and again by who looks on."""

    def __init__(self, storage: Storage, lease_s: float) -> None:
        """Look on.

        Args:
            storage: of the run.
            lease_s: a worker that gives no sign of life for longer is taken for dead.
        """
        self._ledger = Ledger(storage, new_worker_name("onlooker"), SystemClock(), lease_s)
        self._lease_s = lease_s
        self._host = socket.gethostname()

    def of(self, worker: str, heartbeat: Mapping[str, Any]) -> Presence:
        """Whether a worker is there, by its last sign of life.

        A process of this very machine that was killed is known at once, others after their lease.
        """
        if heartbeat.get("ended"):
            return Presence.ENDED
        if heartbeat.get("host") == self._host and self._ledger.is_silent(worker):
            return Presence.GONE
        silent_s = time.time() - float(heartbeat.get("at", 0))
        return Presence.SILENT if silent_s > self._lease_s else Presence.RUNNING
