"""Rows gathered and sorted by length, so that a batch is padded as little as possible."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from batchwright.core.records import Request

MAX_ROWS = 8192

# A batch of this share of the budget is ended rather than padded to more than this.
_ENOUGH = 0.25
_SHORTEST = 0.8


class LengthBatches:
    """A queue of rows that gives them out in batches of like length.

    What waits is sorted as a whole, and that is given out before rows that came later, except
    where it no longer fills a batch. The sorting turns round each time: the rows left over are the
    first ones of the next, so none waits for ever.

    Args:
        max_tokens: tokens of a batch, padding included; one row may be longer.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._sorted: list[Request] = []  # the next row is the last one
        self._sorted_tokens = 0
        self._arrived: list[Request] = []
        self._longest_first = False

    def __len__(self) -> int:
        return len(self._sorted) + len(self._arrived)

    def add(self, requests: Sequence[Request]) -> None:
        """Queue rows."""
        self._arrived.extend(requests)

    def remove(self, rows: Collection[int]) -> None:
        """Forget rows."""
        self._sorted = [one for one in self._sorted if one.row not in rows]
        self._arrived = [one for one in self._arrived if one.row not in rows]
        self._sorted_tokens = sum(len(one.token_ids) for one in self._sorted)

    def take(self) -> list[Request]:
        """The next batch; empty when nothing waits."""
        if self._arrived and self._sorted_tokens < self.max_tokens:
            self._sort()
        count = self._count()
        batch = self._sorted[-count:] if count else []
        del self._sorted[len(self._sorted) - count :]
        self._sorted_tokens -= sum(len(one.token_ids) for one in batch)
        return batch

    def _sort(self) -> None:
        self._longest_first = not self._longest_first
        self._sorted += self._arrived
        self._arrived = []
        self._sorted.sort(key=_length, reverse=not self._longest_first)
        self._sorted_tokens = sum(map(_length, self._sorted))

    def _count(self) -> int:
        """How many of the next rows make a batch."""
        longest, shortest, count = 0, 1 << 40, 0
        for request in reversed(self._sorted):
            length = len(request.token_ids)
            longest, shortest = max(longest, length), min(shortest, length)
            padded = longest * (count + 1)
            if count and (padded > self.max_tokens or count == MAX_ROWS):
                break
            if padded > _ENOUGH * self.max_tokens and shortest < _SHORTEST * longest:
                break
            count += 1
        return max(count, min(1, len(self._sorted)))


def _length(request: Request) -> int:
    return len(request.token_ids)
