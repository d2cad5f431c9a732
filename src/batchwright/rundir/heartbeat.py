"""A worker's sign of life, from a thread of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import orjson

from batchwright.core import errors
from batchwright.core.errors import BatchwrightError, StorageError
from batchwright.rundir import layout
from batchwright.rundir.ledger import Ledger, read_heartbeat
from batchwright.rundir.storage import Storage


class Heartbeat:
    """Publishes a sign of life from a thread of its own: starting an engine takes minutes."""

    def __init__(self, ledger: Ledger, state: Callable[[], dict[str, Any]], lease_s: float) -> None:
        self._ledger = ledger
        self._state = state
        self._interval_s = min(ledger.storage.seldom(1.0), lease_s / 4)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> None:
        self._ledger.heartbeat(self._state())
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._ledger.heartbeat(self._state(), ended=True)
        self._ledger.storage.flush_logs()

    def _beat(self) -> None:
        while not self._done.wait(self._interval_s):
            # One that fails is not the end: without the next one, the work would be done twice.
            with contextlib.suppress(StorageError):
                self._ledger.heartbeat(self._state())


def declare_dead(storage: Storage, worker: str) -> None:
    """Free the claims of a worker that is known to be gone: nobody needs to wait for its lease.

    Should it live all the same, cut off somewhere, its work is done twice and counts once.
    """
    state = read_heartbeat(storage, worker)
    if state:
        storage.put(layout.heartbeat(worker), orjson.dumps({**state, "ended": True}))


def reported_error(heartbeat: dict[str, Any]) -> BatchwrightError | None:
    """The error that a worker left in its last heartbeat."""
    report = heartbeat.get("error")
    if not report:
        return None
    kind: type[BatchwrightError] = getattr(errors, report["kind"], BatchwrightError)
    return kind(report["message"], report["hint"])
