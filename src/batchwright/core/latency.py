"""How long rows take, as counts of rows by time: small, and sums of several are exact."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

# Eight steps to a doubling: a quantile is off by 5 % at most.
STEPS_PER_DOUBLING = 8
SHORTEST_S = 0.001


def count_times(times_s: Iterable[float]) -> dict[str, int]:
    """Rows by step; a step's name is its number, as JSON wants it."""
    steps = Counter(_step(seconds) for seconds in times_s)
    return {str(step): steps[step] for step in sorted(steps)}


def add_up(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The counts of several chunks together."""
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def quantile_s(counts: Mapping[str, int], share: float) -> float | None:
    """The time that `share` of the rows do not exceed, about; None if nothing was counted."""
    wanted = share * sum(counts.values())
    seen = 0
    for step in sorted(map(int, counts)):
        seen += counts[str(step)]
        if seen >= wanted:
            return float(SHORTEST_S * 2 ** ((step + 0.5) / STEPS_PER_DOUBLING))
    return None


def _step(seconds: float) -> int:
    return max(0, math.floor(STEPS_PER_DOUBLING * math.log2(max(seconds, SHORTEST_S) / SHORTEST_S)))
