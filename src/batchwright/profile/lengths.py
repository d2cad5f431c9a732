"""Lengths of all rows, counted exactly in bounded memory."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from batchwright.core.profile import Sampled
from batchwright.core.workload import LengthHistogram

LONGEST_KEPT = 10

# 95 % of a normal distribution lies within so many standard deviations of its mean.
Z_95 = 1.96

# Lengths below this are counted in an array (512 KiB); the few above it in a dict.
_SHORT = 1 << 16


class LengthTally:
    """Counts rows by length; what it says is exact, whatever the number of rows.

    Memory: 512 KiB, about 100 bytes for each *different* length of 65,536 tokens and more, and
    the longest rows.
    """

    def __init__(self, keep: int = LONGEST_KEPT) -> None:
        self._short = np.zeros(_SHORT, dtype=np.int64)
        self._long: dict[int, int] = {}
        self._keep = keep
        self._heap: list[tuple[int, int, str]] = []

    def add(self, lengths: npt.NDArray[np.integer]) -> None:
        """Count rows. `lengths` has shape (rows,), in tokens, none negative."""
        short = lengths < _SHORT
        if len(lengths):
            self._short += np.bincount(lengths[short], minlength=_SHORT)
        values, counts = np.unique(lengths[~short], return_counts=True)
        for length, count in zip(values.tolist(), counts.tolist(), strict=True):
            self._long[length] = self._long.get(length, 0) + count

    def note_longest(
        self,
        lengths: npt.NDArray[np.integer],
        rows: npt.NDArray[np.integer],
        ids: Sequence[str | None],
    ) -> None:
        """Remember the longest of these rows; all three have shape (rows,)."""
        if not len(lengths) or not self._keep:
            return
        floor = self._heap[0][0] if len(self._heap) == self._keep else -1
        if len(lengths) > self._keep:
            floor = max(floor, int(np.partition(lengths, -self._keep)[-self._keep]))
        for index in np.flatnonzero(lengths >= floor).tolist():
            self._push((int(lengths[index]), -int(rows[index]), ids[index] or ""))

    def merge(self, other: LengthTally) -> None:
        """Take in what another tally has counted, as if this one had seen its rows too."""
        self._short += other._short
        for length, count in other._long.items():
            self._long[length] = self._long.get(length, 0) + count
        for item in other._heap:
            self._push(item)

    def _push(self, item: tuple[int, int, str]) -> None:
        if len(self._heap) < self._keep:
            heapq.heappush(self._heap, item)
        else:
            heapq.heappushpop(self._heap, item)

    @property
    def longest(self) -> tuple[tuple[int, str | None, int], ...]:
        """(row, id, tokens) of the longest rows, longest first, the earlier row first if equal."""
        ordered = sorted(self._heap, reverse=True)
        return tuple((-row, id_ or None, tokens) for tokens, row, id_ in ordered)

    def histogram(self) -> LengthHistogram:
        """Ascending lengths and their counts."""
        found = np.flatnonzero(self._short)
        above = sorted(self._long.items())
        return LengthHistogram(
            (*found.tolist(), *(length for length, _ in above)),
            (*self._short[found].tolist(), *(count for _, count in above)),
        )

    def percentile(self, percent: float) -> int:
        """As `numpy.percentile(lengths, percent, method="inverted_cdf")` on all rows."""
        return self.histogram().quantile(percent / 100)


def sampling_error(lengths: LengthHistogram, *, share: float, rows_read: int, rows: int) -> Sampled:
    """95 % intervals of the median, of p99 and of the total, from a simple random sample.

    The interval of a quantile lies between two order statistics, whose ranks follow from the
    binomial distribution, whatever that of the lengths is (Conover, Practical Nonparametric
    Statistics, 3rd ed., section 3.2); that of the total is the usual one of an expansion
    estimator, valid rows and rejected ones (0 tokens) together, with the finite population
    correction (Cochran, Sampling Techniques, 3rd ed., section 2.6).
    """
    p50, p99 = (_quantile_interval(lengths, share_) for share_ in (0.5, 0.99))
    squares = sum(
        length * length * count
        for length, count in zip(lengths.lengths, lengths.counts, strict=True)
    )
    read = max(rows_read, 1)
    mean = lengths.total / read
    spread = math.sqrt(max(squares / read - mean * mean, 0.0))
    missing = math.sqrt(max(1 - rows_read / rows, 0.0)) if rows else 0.0
    half = Z_95 * spread / math.sqrt(read) * missing
    total = (max(round((mean - half) * rows), lengths.total), round((mean + half) * rows))
    error = f"±{half / mean:.1%}" if mean else "unknown"
    words = (
        f"From {rows_read:,} of {rows:,} rows, with 95 % certainty: half of the prompts have at "
        f"most {p50[0]:,} to {p50[1]:,} tokens, 99 % at most {p99[0]:,} to {p99[1]:,}, and all "
        f"rows together have {total[0]:,} to {total[1]:,} ({error}). The longest row, duplicates "
        "and shared prefixes are lower bounds: what is not in the sample is not counted."
    )
    return Sampled(share, rows_read, rows, p50, p99, total, words)


def _quantile_interval(lengths: LengthHistogram, share: float) -> tuple[int, int]:
    rows = lengths.rows
    if not rows:
        return 0, 0
    half = Z_95 * math.sqrt(share * (1 - share) / rows)
    return lengths.quantile(max(share - half, 0.0)), lengths.quantile(min(share + half, 1.0))
