"""How far a run is, and how fast it goes."""

from __future__ import annotations

from collections import deque

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
