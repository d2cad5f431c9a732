"""An append-only log of what happened to a run, one JSON object a line."""

from __future__ import annotations

from typing import Any

import orjson

from batchwright.core.ports import Clock
from batchwright.rundir import layout
from batchwright.rundir.storage import Storage


class Events:
    """Writes `events.jsonl`; each line has the time, who wrote it and what happened."""

    def __init__(self, storage: Storage, worker: str, clock: Clock) -> None:
        self._storage = storage
        self._worker = worker
        self._clock = clock

    def write(self, event: str, **details: Any) -> None:
        """Append one event."""
        line = {"at": self._clock.now(), "worker": self._worker, "event": event, **details}
        self._storage.append(layout.EVENTS, orjson.dumps(line) + b"\n")
