"""The real clock."""

from __future__ import annotations

import time


class SystemClock:
    """`core.ports.Clock` on this machine's time."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
