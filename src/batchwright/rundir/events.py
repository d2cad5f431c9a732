"""An append-only log of what happened to a run, one JSON object a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def read_events(storage: Storage) -> list[dict[str, Any]]:
    """What happened to a run, oldest first; a line that is torn, or being written, is left out."""
    found = []
    for line in storage.read_log(layout.EVENTS).splitlines():
        try:
            found.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            continue
    return [one for one in found if "at" in one and "event" in one]


def newest_start(events: Iterable[Mapping[str, Any]]) -> float:
    """When the newest start of a run began; 0 if nobody noted it."""
    return max((one["at"] for one in events if one["event"] == "run_started"), default=0.0)
