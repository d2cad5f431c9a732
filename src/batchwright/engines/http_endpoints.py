"""Which endpoint gets the next request: the least busy of those that answer; without network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batchwright.engines.http_window import Window

# An endpoint that fails is left alone for the first of these, twice as long each time, up to the last.
ASIDE_S = 0.5
ASIDE_CAP_S = 15.0

# So many faults with no answer in between, and it counts as not there.
FAULTS_IN_A_ROW = 5


@dataclass(slots=True)
class Endpoint:
    """One address, and how it is doing.

    Attributes:
        url: below which the paths of the API are.
        window: requests that it may have.
        in_flight: requests that it has.
        failures: to reach it, in a row; above 0 it gets one request at a time.
        faults: answers of no use, in a row.
        free_at: until then it gets none.
    """

    url: str
    window: Window
    in_flight: int = 0
    failures: int = 0
    faults: int = 0
    free_at: float = float("-inf")

    @property
    def places(self) -> int:
        """Requests that it may have now: one while nobody knows whether it is back."""
        return 1 if self.failures else self.window.limit

    def answered(self) -> None:
        """It is there."""
        if self.failures:
            self.window.restart()
        self.failures = self.faults = 0

    def faulty(self, now: float) -> None:
        """It answered with a fault of its own, or broke off."""
        self.faults += 1
        if self.faults >= FAULTS_IN_A_ROW:
            self.away(now)

    def away(self, now: float) -> None:
        """It was not there. Requests that failed together count once."""
        if self.free_at > now:
            return
        self.failures += 1
        self.free_at = now + min(ASIDE_CAP_S, ASIDE_S * 2.0 ** (self.failures - 1))

    def pause(self, until: float) -> None:
        """It asked to be left alone."""
        self.free_at = max(self.free_at, until)


def choose(endpoints: Sequence[Endpoint], now: float) -> tuple[Endpoint | None, float | None]:
    """The endpoint for the next request; or None, and in how many seconds one may be free.

    The seconds are None if that is when a request is answered.
    """
    free = [one for one in endpoints if one.free_at <= now and one.in_flight < one.places]
    if free:
        return min(free, key=lambda one: (one.failures, one.in_flight)), 0.0
    later = [one.free_at - now for one in endpoints if one.free_at > now]
    return None, min(later, default=None)
