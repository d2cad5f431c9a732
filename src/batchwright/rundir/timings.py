"""When each row of a pilot ended, in seconds and engine steps: what its estimate is made from."""

from __future__ import annotations

from typing import Any

import orjson

from batchwright.core.ports import Clock
from batchwright.core.records import Chunk, Outcome
from batchwright.rundir import layout
from batchwright.rundir.storage import Storage


class Timings:
    """Notes the time of one worker's engine, from the moment it is up."""

    def __init__(self, storage: Storage, worker: str, clock: Clock) -> None:
        self._storage = storage
        self._worker = worker
        self._clock = clock
        self._up_at = clock.monotonic()
        self._start_up_s = 0.0
        self._readings: list[tuple[float, int]] = [(0.0, 0)]
        self._ended: dict[int, tuple[float, int]] = {}

    def engine_is_starting(self) -> None:
        """The clock of the start-up runs from now."""
        self._up_at = self._clock.monotonic()

    def engine_is_up(self) -> None:
        """The engine takes rows from now on."""
        now = self._clock.monotonic()
        self._start_up_s = now - self._up_at
        self._up_at = now

    def note(self, steps: int, outcomes: list[Outcome]) -> None:
        """What has come out of the engine, and how many steps it has made by now."""
        reading = (self._clock.monotonic() - self._up_at, steps)
        self._readings.append(reading)
        self._ended.update((outcome.row, reading) for outcome in outcomes)

    def write(self, chunk: Chunk, rows: list[int]) -> None:
        """Leave what is known of a finished chunk's rows."""
        body: dict[str, Any] = {
            "worker": self._worker,
            "start_up_s": self._start_up_s,
            "ended": {str(row): self._ended[row] for row in rows},
            "readings": list(self._readings),
        }
        self._storage.put(layout.timings(chunk.name), orjson.dumps(body))
