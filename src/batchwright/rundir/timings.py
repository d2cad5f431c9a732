"""When each row of a pilot ended, in seconds and engine steps: what its estimate is made from."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import orjson

from batchwright.core.outcomes import Outcome
from batchwright.core.ports import Clock, EngineGauges
from batchwright.core.records import Chunk
from batchwright.rundir import layout
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage


@dataclass(frozen=True, slots=True)
class Reading:
    """The engine at a moment.

    Attributes:
        seconds: since it was up.
        steps: made by then.
        prompt_tokens: computed by then.
        output_tokens: made by then.
        waiting: rows that had no place.
    """

    seconds: float
    steps: int
    prompt_tokens: int
    output_tokens: int
    waiting: int


class Timings:
    """Notes the time of one worker's engine, from the moment it is up until its pilot is done."""

    def __init__(self, storage: Storage, worker: str, clock: Clock) -> None:
        self._storage = storage
        self._worker = worker
        self._clock = clock
        self._up_at = clock.monotonic()
        self._start_up_s = 0.0
        self._readings = [Reading(0.0, 0, 0, 0, 0)]
        self._before = (0, 0, 0)  # what engines had done that died
        self._last = (0, 0, 0)
        self._ended: dict[int, tuple[float, int]] = {}
        self._pilot: set[str] = set()
        self._open = 0
        self._closed = False

    def engine_is_starting(self) -> None:
        """The clock of the start-up runs from now."""
        self._up_at = self._clock.monotonic()

    def engine_is_up(self) -> None:
        """The engine takes rows from now on."""
        now = self._clock.monotonic()
        self._start_up_s = now - self._up_at
        self._up_at = now

    def begin(self, chunk: Chunk) -> None:
        """The worker feeds this chunk now; after the pilot's last one nothing is noted any more."""
        if self._closed:
            return
        if len(self._readings) == 1 and not self._ended:  # the clock starts with the first row
            self._up_at = self._clock.monotonic()
        if not self._pilot:
            state = RunState(self._storage)
            state.refresh_order()
            self._pilot = {one.name for one in state.pilot}
        if chunk.name in self._pilot:
            self._open += 1
        else:
            self._closed = self._open == 0

    def note(self, gauges: EngineGauges, held: int, outcomes: list[Outcome]) -> None:
        """What has come out of the engine, and how far it is; `held` rows have no outcome yet."""
        if self._closed:
            return
        done = (gauges.steps, gauges.prompt_tokens, gauges.output_tokens)
        if done[0] < self._last[0]:  # another engine, after a death
            self._before = self._sum(self._last)
        self._last = done
        steps, prompt_tokens, output_tokens = self._sum(done)
        seconds = self._clock.monotonic() - self._up_at
        waiting = max(0, held - gauges.running)
        self._readings.append(Reading(seconds, steps, prompt_tokens, output_tokens, waiting))
        self._ended.update((outcome.row, (seconds, steps)) for outcome in outcomes)

    def _sum(self, done: tuple[int, int, int]) -> tuple[int, int, int]:
        first, second, third = (a + b for a, b in zip(self._before, done, strict=True))
        return first, second, third

    def write(self, chunk: Chunk, rows: list[int]) -> None:
        """Leave what is known of a finished chunk's rows, if it is one of the pilot's."""
        if chunk.name not in self._pilot:
            return
        body: dict[str, Any] = {
            "worker": self._worker,
            "start_up_s": self._start_up_s,
            "ended": {str(row): self._ended[row] for row in rows if row in self._ended},
            "readings": [astuple(reading) for reading in list(self._readings)],
        }
        self._storage.put(layout.timings(chunk.name), orjson.dumps(body))
        self._open -= 1
