"""Rows and tokens per second over the last while."""

from __future__ import annotations

from collections import deque

# The rate is taken over this long, so that it follows the run but does not jump.
RATE_WINDOW_S = 30.0


class Rate:
    """Takes readings of what is done, and tells how fast it grows."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, int, int]] = deque()

    def add(self, now: float, rows: int, tokens: int) -> tuple[float, float]:
        """Rows and tokens per second; `now` is monotonic seconds, the others are totals."""
        self._readings.append((now, rows, tokens))
        while now - self._readings[0][0] > RATE_WINDOW_S and len(self._readings) > 2:
            self._readings.popleft()
        start, first_rows, first_tokens = self._readings[0]
        seconds = now - start
        if seconds <= 0:
            return 0.0, 0.0
        return max(0, rows - first_rows) / seconds, max(0, tokens - first_tokens) / seconds
