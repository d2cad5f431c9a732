"""How far a run is, and how fast it goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from batchwright.config.job import Job
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.state import Counts, RunState

# The rate is taken over this long, so that it follows the run but does not jump.
RATE_WINDOW_S = 30.0


def expected_rows(state: RunState, counts: Counts, manifest: Manifest, job: Job) -> int:
    """Rows of the whole input, an estimate until all are numbered."""
    if counts.ordered:
        return counts.rows
    ordered = {part.split for batch in state.batches for part in batch.parts}
    if not ordered:
        return 0
    estimate = counts.rows * len(manifest.splits) // len(ordered)
    limit = job.input.limit
    return estimate if limit is None else min(estimate, limit)


def rows_done(counts: Counts, workers: Iterable[Mapping[str, Any]], expected: int) -> int:
    """Rows that nobody needs to run any more, and those that are finished and not committed yet.

    Args:
        counts: what is committed.
        workers: the last signs of life of those with an engine.
        expected: rows of the whole input.
    """
    uncommitted = sum(max(0, int(worker.get("uncommitted", 0))) for worker in workers)
    return min(counts.done + uncommitted, max(expected, counts.done))


def with_engines(roster: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """The workers with an engine, those that have ended too, and their numbers: by their start.

    Args:
        roster: the last sign of life of each worker.
    """
    infer = [name for name, one in roster.items() if one.get("role") == "infer" and one.get("at")]
    ordered = sorted(infer, key=lambda name: (float(roster[name].get("started", 0.0)), name))
    return {name: number for number, name in enumerate(ordered, 1)}


def run_phase(
    workers: Iterable[Mapping[str, Any]], counts: Counts, starting: str = "starting workers"
) -> str:
    """What a run does, in a few words: the phase of its foremost worker with an engine."""
    phases = [
        worker["phase"] for worker in workers if not worker.get("ended") and "phase" in worker
    ]
    known = ("running", "starting the engine", "waiting for rows")
    now = next((phase for phase in known if phase in phases), starting)
    return "finishing" if counts.complete else now


class Rate:
    """Rows and tokens per second over the last while."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, int, int]] = deque()

    def add(self, now: float, rows: int, tokens: int) -> tuple[float, float]:
        """Take a reading; returns rows and tokens per second."""
        self._readings.append((now, rows, tokens))
        while now - self._readings[0][0] > RATE_WINDOW_S and len(self._readings) > 2:
            self._readings.popleft()
        start, first_rows, first_tokens = self._readings[0]
        seconds = now - start
        if seconds <= 0:
            return 0.0, 0.0
        return max(0, rows - first_rows) / seconds, max(0, tokens - first_tokens) / seconds
