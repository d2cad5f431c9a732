"""Rows that wait for an endpoint: new ones, and those that will be sent again."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from batchwright.core.records import Request
from batchwright.engines.openai_request import is_text


@dataclass(slots=True)
class Errand:
    """Rows on their way to an answer: one, or the inputs of one embedding request.

    Attributes:
        requests: the rows.
        tries: how often they were sent.
        failures: that count against them.
        waits: failures of any kind since the last answer: what the back-off follows.
        answers_seen: answers of all rows when they were last sent.
    """

    requests: list[Request]
    tries: int = 0
    failures: int = 0
    waits: int = 0
    answers_seen: int = 0

    def drop(self, rows: Collection[int]) -> None:
        """Forget rows."""
        self.requests = [one for one in self.requests if one.row not in rows]


@dataclass(slots=True)
class Line:
    """Rows that wait: those that have never been sent, and those that will be sent again."""

    fresh: deque[Request] = field(default_factory=deque)
    due: deque[Errand] = field(default_factory=deque)
    later: list[tuple[float, int, Errand]] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def __len__(self) -> int:
        return len(self.fresh) + len(self.due)

    def again(self, errand: Errand, at: float) -> None:
        """Send these rows again, at this time."""
        heapq.heappush(self.later, (at, next(self.numbers), errand))

    def ripen(self, now: float) -> float | None:
        """Move what is due to the front; in how many seconds the next one is, None if none is."""
        while self.later and self.later[0][0] <= now:
            self.due.append(heapq.heappop(self.later)[2])
        return self.later[0][0] - now if self.later else None

    def drop(self, rows: Collection[int]) -> None:
        """Forget rows."""
        self.fresh = deque(one for one in self.fresh if one.row not in rows)
        for errand in [*self.due, *(errand for _, _, errand in self.later)]:
            errand.drop(rows)
        self.due = deque(errand for errand in self.due if errand.requests)
        self.later = [entry for entry in self.later if entry[2].requests]
        heapq.heapify(self.later)

    def take(self, most: int) -> Errand:
        """The next errand, of so many rows at most, all of text or all of token ids."""
        if self.due:
            return self.due.popleft()
        first = self.fresh.popleft()
        rows = [first]
        if most > 1:
            kind = is_text(first)
            while self.fresh and len(rows) < most and is_text(self.fresh[0]) == kind:
                rows.append(self.fresh.popleft())
        return Errand(rows)
