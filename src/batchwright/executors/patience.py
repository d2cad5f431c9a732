"""How long a run waits for places on a cluster before it ends."""

from __future__ import annotations

from collections.abc import Sequence


class Patience:
    """Notices when too few workers have had a place for too long.

    Args:
        least_engines: that a run needs to begin; later one is enough, since others come and go.
        timeout_s: how long to wait, at the start and each time that all places are lost.
    """

    def __init__(self, least_engines: int, timeout_s: float) -> None:
        self._least = max(1, least_engines)
        self._timeout_s = timeout_s
        self._short_since: float | None = None

    def look(self, now: float, engines: Sequence[bool], preparers: Sequence[bool]) -> str | None:
        """What has been missing for too long; None while there is hope.

        Args:
            now: seconds that never go back.
            engines: of each engine that has work left, whether it has a place.
            preparers: of each process that prepares rows, whether it has a place.
        """
        short = self._short_of(engines, preparers)
        if short is None:
            self._short_since = None
            return None
        if self._short_since is None:
            self._short_since = now
        waited_s = now - self._short_since
        return f"after {waited_s:.0f} s {short}" if waited_s > self._timeout_s else None

    def _short_of(self, engines: Sequence[bool], preparers: Sequence[bool]) -> str | None:
        placed = sum(engines)
        if engines and placed < self._least:
            return f"only {placed} of {self._least} engines have a place"
        if engines:
            self._least = 1
        # Engines would wait for rows for ever.
        if preparers and not any(preparers):
            return "no preparing process has a place"
        return None
