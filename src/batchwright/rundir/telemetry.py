"""What a worker has done: counters for its heartbeat, and a line a second for later."""

from __future__ import annotations

import dataclasses
from typing import Any

import orjson

from batchwright.core.ports import Clock, EngineGauges
from batchwright.core.records import Outcome
from batchwright.rundir import layout
from batchwright.rundir.storage import Storage

EVERY_S = 1.0


class Telemetry:
    """Appends a worker's totals and its engine's gauges to `telemetry/`, once a second."""

    def __init__(self, storage: Storage, worker: str, clock: Clock) -> None:
        self._storage = storage
        self._path = layout.telemetry(worker)
        self._clock = clock
        self._read_at = float("-inf")

    def read(self, tally: Tally, gauges: EngineGauges) -> None:
        """Append a line if it is time for one."""
        now = self._clock.monotonic()
        if now - self._read_at < EVERY_S:
            return
        self._read_at = now
        line = {"at": self._clock.now(), **tally.totals(), **dataclasses.asdict(gauges)}
        self._storage.append(self._path, orjson.dumps(line) + b"\n")


class Tally:
    """Counters of one worker, read by its heartbeat thread."""

    def __init__(self) -> None:
        self.phase = "waiting for rows"
        self._finished = 0
        self._committed = 0
        self._tokens = 0
        self._prompt_tokens = 0

    def add(self, outcome: Outcome, prompt_tokens: int) -> None:
        """Count a row that came out of the engine."""
        self._finished += 1
        self._tokens += len(outcome.token_ids)
        self._prompt_tokens += prompt_tokens

    def totals(self) -> dict[str, int]:
        """What has come out of the engine since this worker began."""
        return {
            "rows": self._finished,
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._tokens,
        }

    def committed(self, rows: int) -> None:
        """Count rows that have a receipt."""
        self._committed += rows

    def as_json(self) -> dict[str, Any]:
        """What the heartbeat tells."""
        return {
            "phase": self.phase,
            "uncommitted": self._finished - self._committed,
            "completion_tokens": self._tokens,
        }
