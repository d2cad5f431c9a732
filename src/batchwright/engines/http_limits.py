"""Requests and tokens per minute that a provider allows: token buckets, without clock."""

from __future__ import annotations

from math import ceil

# A bucket holds what comes in so long: providers count in short spans too.
BURST_S = 1.0

_NOTHING = 1e-6  # what rounding leaves


class Bucket:
    """Lets so much through per minute.

    What is taken may exceed what is there, once: the debt is waited for by whoever comes next. So
    a request larger than the bucket still goes.

    Args:
        per_minute: the allowance; 0 for no limit.
        now: seconds that never go back.
    """

    def __init__(self, per_minute: float, now: float) -> None:
        self._per_s = per_minute / 60.0
        self._most = max(1.0, self._per_s * BURST_S)
        self._level = self._most
        self._at = now

    def wait_s(self, now: float) -> float:
        """Seconds until something may be taken."""
        if self._per_s <= 0:
            return 0.0
        self._fill(now)
        missing = 1.0 - self._level
        return missing / self._per_s if missing > _NOTHING else 0.0

    def take(self, now: float, amount: float) -> None:
        """Take, into debt if need be."""
        if self._per_s > 0:
            self._fill(now)
            self._level -= amount

    def correct(self, now: float, more: float) -> None:
        """What was taken turned out to be so much more, or less if below 0."""
        self.take(now, more)

    def _fill(self, now: float) -> None:
        self._level = min(self._most, self._level + (now - self._at) * self._per_s)
        self._at = now


class Allowance:
    """Requests and tokens per minute together.

    Args:
        rpm: requests per minute; 0 for no limit.
        tpm: tokens per minute; 0 for no limit.
        now: seconds that never go back.
    """

    def __init__(self, rpm: float, tpm: float, now: float) -> None:
        self._requests = Bucket(rpm, now)
        self._tokens = Bucket(tpm, now)

    def wait_s(self, now: float) -> float:
        """Seconds until the next request may go."""
        return max(self._requests.wait_s(now), self._tokens.wait_s(now))

    def take(self, now: float, tokens: int) -> None:
        """A request goes that is expected to take so many tokens."""
        self._requests.take(now, 1)
        self._tokens.take(now, tokens)

    def correct(self, now: float, expected: int, used: int) -> None:
        """What the request really took."""
        self._tokens.correct(now, used - expected)


def expected_tokens(prompt_tokens: int, max_tokens: int, mean_share: float) -> int:
    """What a request will take, answers being as long as they have been so far.

    Args:
        prompt_tokens: of the row.
        max_tokens: cap of its answer.
        mean_share: of their cap that answers have used.
    """
    return prompt_tokens + ceil(max_tokens * mean_share)
