"""What a worker has done: counters for its heartbeat, and a line a second for later."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from batchwright.core.outcomes import Outcome
from batchwright.core.ports import Clock, EngineGauges
from batchwright.rundir import layout
from batchwright.rundir.storage import Storage

EVERY_S = 1.0


class GpuReading(NamedTuple):
    """One card, or the cards of one worker, at one moment; None is what the driver does not tell.

    Attributes:
        use: share of the last moments in which the card worked; of several cards, the mean.
        memory_bytes: in use on the card by whomever; of several cards, the most.
        power_w: of one card; of several, the mean.
    """

    use: float | None
    memory_bytes: int | None
    power_w: float | None

    def as_json(self) -> dict[str, float]:
        """What is known, by the names that it has in a line."""
        named = {
            "gpu_use": self.use,
            "gpu_memory_bytes": self.memory_bytes,
            "gpu_power_w": self.power_w,
        }
        return {name: value for name, value in named.items() if value is not None}


def gpu_of(lines: Iterable[Mapping[str, Any]]) -> tuple[float | None, int | None]:
    """Mean use of the cards and the most memory in use on one of them; None if not known.

    Args:
        lines: of one worker or several; each stands for a second of one worker.
    """
    uses: list[float] = []
    memories: list[int] = []
    for line in lines:
        if "gpu_use" in line:
            uses.append(float(line["gpu_use"]))
        if "gpu_memory_bytes" in line:
            memories.append(int(line["gpu_memory_bytes"]))
    return sum(uses) / len(uses) if uses else None, max(memories, default=None)


class Telemetry:
    """Appends a worker's totals and its engine's gauges to `telemetry/`, once a second."""

    def __init__(self, storage: Storage, worker: str, clock: Clock) -> None:
        self._storage = storage
        self._path = layout.telemetry(worker)
        self._clock = clock
        self._read_at = float("-inf")
        self._read_gpus: Callable[[], GpuReading | None] | None = None

    def watch_gpus(self, read: Callable[[], GpuReading | None]) -> None:
        """Note the cards too from now on; `read` is called once a second in the same thread."""
        self._read_gpus = read

    def read(self, tally: Tally, gauges: EngineGauges) -> None:
        """Append a line if it is time for one."""
        now = self._clock.monotonic()
        if now - self._read_at < EVERY_S:
            return
        self._read_at = now
        line = {"at": self._clock.now(), **tally.totals(), **dataclasses.asdict(gauges)}
        cards = self._read_gpus() if self._read_gpus is not None else None
        if cards is not None:
            line |= cards.as_json()
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
        self._tokens += outcome.num_output_tokens
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
            "rows": self._finished,
            "uncommitted": self._finished - self._committed,
            **self.totals(),
        }
