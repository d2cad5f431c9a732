"""How many blocks were used since a given row: stack distances, many at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Uses compared pair by pair at a time.
_AT_A_TIME = 512

# More positions than this are merged, but for the newest ones.
_MAX_POSITIONS = 1 << 15
_KEPT_EXACT = 1 << 13
_MERGED_SHARE = 1 / 512


class Recency:
    """The blocks by the row that had them last: enough to say how far back a row lies.

    Positions are rows, ascending. Where there are more than 32,768 of them, old neighbours are
    merged as long as a merged stretch holds less than 1/512 of the blocks that are newer than it:
    a distance is off by 0.2 % at most, and memory is bounded.
    """

    def __init__(self) -> None:
        self._low: Ints = np.zeros(0, dtype=np.int64)  # first row of each stretch
        self._high: Ints = np.zeros(0, dtype=np.int64)  # last row of each stretch
        self._weight: Floats = np.zeros(0)

    def reset(self, last: Ints, weight: Floats) -> None:
        """Start from blocks with these last rows and weights, both of shape (blocks,)."""
        rows, inverse = np.unique(last, return_inverse=True)
        self._low, self._high = rows, rows
        self._weight = _sums(inverse, weight, len(rows))
        self._merge()

    def use(self, rows: Ints, previous: Ints, weights: Floats) -> Floats:
        """Blocks used by later rows since their own last use, before this one.

        Args:
            rows: shape (uses,), ascending: the row of each use of blocks with one last row.
            previous: the row that had these blocks last, -1 for new blocks.
            weights: how many blocks the use stands for.

        Returns:
            shape (uses,): distinct blocks whose last row lies after `previous` and before the
            use's own row; 0 for new blocks.
        """
        out = np.zeros(len(rows))
        start = 0
        while start < len(rows):
            stop = min(start + _AT_A_TIME, len(rows))
            stop = int(np.searchsorted(rows, rows[stop - 1], "right"))  # whole rows only
            piece = slice(start, stop)
            out[piece] = self._distances(rows[piece], previous[piece], weights[piece])
            self._update(rows[piece], previous[piece], weights[piece])
            start = stop
        return out

    def _distances(self, rows: Ints, previous: Ints, weights: Floats) -> Floats:
        old = previous >= 0
        asked, since, moved = rows[old], previous[old], weights[old]
        # Blocks that come within this piece before the asking row, and after `since` ...
        sums = np.concatenate([[0.0], np.cumsum(weights)])
        came = sums[np.searchsorted(rows, asked)] - sums[np.searchsorted(rows, since, "right")]
        # ... of which those that were newer than `since` before are already counted.
        twice = (asked[:, None] > asked[None, :]) & (since[:, None] < since[None, :])
        out = np.zeros(len(rows))
        out[old] = self._newer_than(since) + np.maximum(came, 0.0) - twice @ moved
        return out

    def _newer_than(self, since: Ints) -> Floats:
        """Weight of the blocks whose last row, before this piece, lies after `since`."""
        newer = np.concatenate([np.cumsum(self._weight[::-1])[::-1], [0.0, 0.0]])
        at = np.searchsorted(self._high, since)
        inside = np.minimum(at, len(self._high) - 1)
        if not len(self._high):
            return np.zeros(len(since))
        length = self._high[inside] - self._low[inside] + 1
        share = np.clip((self._high[inside] - since) / length, 0.0, 1.0)
        share[at > inside] = 0.0
        return np.asarray(newer[at + 1] + share * self._weight[inside])

    def _update(self, rows: Ints, previous: Ints, weights: Floats) -> None:
        new_rows, inverse = np.unique(rows, return_inverse=True)
        self._low = np.concatenate([self._low, new_rows])
        self._high = np.concatenate([self._high, new_rows])
        came = _sums(inverse, weights, len(new_rows))
        self._weight = np.concatenate([self._weight, came])
        old = previous >= 0
        at = np.searchsorted(self._high, previous[old])
        self._weight -= _sums(at, weights[old], len(self._weight))
        if len(self._weight) > _MAX_POSITIONS:
            self._merge()

    def _merge(self) -> None:
        """Join neighbours among the old positions, and drop the empty ones."""
        old = max(len(self._weight) - _KEPT_EXACT, 0)
        np.maximum(self._weight, 0.0, out=self._weight)
        newer = np.cumsum(self._weight[::-1])[::-1]
        total = newer[0] if len(newer) else 0.0
        # Stretches that are even in the logarithm of what is newer than them.
        bucket = np.full(len(self._weight), -1, dtype=np.int64)
        behind = np.maximum(newer[:old], 1.0)
        bucket[:old] = np.floor(np.log(max(total, 1.0) / behind) / _MERGED_SHARE).astype(np.int64)
        first = np.ones(len(bucket), dtype=np.bool_)
        first[1:old] = bucket[1:old] != bucket[: max(old - 1, 0)]
        starts = np.flatnonzero(first)
        if len(starts) == len(bucket):
            return
        self._weight = np.add.reduceat(self._weight, starts)
        self._low = self._low[starts]
        self._high = self._high[np.append(starts[1:], len(first)) - 1]


def _sums(at: npt.NDArray[np.integer], weights: Floats, size: int) -> Floats:
    """Weights added up by place, shape (size,)."""
    return np.bincount(at, weights=weights, minlength=size).astype(np.float64, copy=False)
