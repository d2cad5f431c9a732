"""From the rows of a stratified sample to the sum over all rows, and how sure it is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Studentised deviations beyond this are those of resamples that missed the whole tail.
_FARTHEST = 6.0


class Strata:
    """Rows of a sample by stratum, and within it by group.

    Args:
        strata: stratum of each row, int64[n].
        weights: rows of the job that each stands for, float64[n].
        groups: rows with the same number were drawn together, int64[n]: they may be alike, and count
            as one draw. None where each was drawn by itself.

    A single draw that stands for others too shows no spread, and its stratum joins a neighbour.
    """

    def __init__(self, strata: Ints, weights: Floats, groups: Ints | None = None) -> None:
        if groups is None:
            groups = np.arange(len(strata), dtype=np.int64)
        ids = _joined(strata, weights, groups)
        self._order = np.lexsort((groups, ids))
        ids, groups = ids[self._order], groups[self._order]
        apart = (np.diff(ids, prepend=-1) != 0) | (np.diff(groups, prepend=-1) != 0)
        self._units = np.flatnonzero(apart)
        self._rows = np.diff(self._units, append=len(ids))
        # In units, not rows.
        self._starts = np.flatnonzero(np.diff(ids[self._units], prepend=-1))
        self._counts = np.diff(self._starts, append=len(self._units))
        self._sizes = np.add.reduceat(weights[self._order], self._units[self._starts])
        share = np.minimum(1.0, self._per_stratum(self._rows) / self._sizes)
        # Finite population correction: rows that were measured are not uncertain.
        self._open = 1.0 - share

    def total(self, values: Floats) -> float:
        """The sum over all rows: mean times size of each stratum."""
        return float(self._sizes @ self._means(self._sums(values), self._rows))

    def draws(self, values: Floats, draws: int, generator: np.random.Generator) -> Floats:
        """Values that the sum might have, float64[draws], from the studentised bootstrap.

        Deviations are measured in standard errors of the resample they come from (Hall 1988), so
        that a resample without the largest rows, which is low and looks sure of it, makes the
        upper side wider: what a mean of heavy-tailed values needs. Groups are drawn whole.
        """
        sums = self._sums(values)
        means = self._means(sums, self._rows)
        error = float(np.sqrt(self._variance(sums, self._rows, means)))
        counts = np.repeat(self._counts, self._counts)
        picks = np.floor(generator.random((draws, len(sums))) * counts).astype(np.int64)
        picks += np.repeat(self._starts, self._counts)
        drawn, rows = sums[picks], self._rows[picks]
        found = self._means(drawn, rows)
        spread = np.sqrt(self._variance(drawn, rows, found))
        apart = ((found - means) * np.sqrt(self._open)) @ self._sizes
        scores = apart / np.maximum(spread, max(1e-300, error / 10))
        shifted: Floats = self._sizes @ means - np.clip(scores, -_FARTHEST, _FARTHEST) * error
        return np.maximum(shifted, float(values.sum()))

    def _sums(self, values: Floats) -> Floats:
        """Of each group."""
        found: Floats = np.add.reduceat(values[self._order], self._units)
        return found

    def _per_stratum(self, values: npt.NDArray[np.number]) -> npt.NDArray[np.number]:
        found: npt.NDArray[np.number] = np.add.reduceat(values, self._starts, axis=-1)
        return found

    def _means(self, sums: Floats, rows: Ints) -> Floats:
        return np.asarray(self._per_stratum(sums) / self._per_stratum(rows))

    def _variance(self, sums: Floats, rows: Ints, means: Floats) -> Floats:
        """Of the estimated sum: Cochran, Sampling Techniques (1977), formulas 5.11 and 9A.6.

        The second, for means of groups of unequal size, is the first where each group is a row.
        """
        squares = self._per_stratum(sums * sums)
        squares = squares - 2 * means * self._per_stratum(sums * rows)
        squares = squares + means * means * self._per_stratum(rows * rows)
        of_mean = np.maximum(0.0, squares) / self._per_stratum(rows) ** 2
        of_mean = of_mean * (self._counts / np.maximum(1, self._counts - 1))
        found: Floats = (of_mean * self._open) @ (self._sizes**2)
        return found


def _joined(strata: Ints, weights: Floats, groups: Ints) -> Ints:
    """Stratum numbers, ascending; those with a single draw given the number of a neighbour."""
    found = np.unique(strata, return_inverse=True)[1].astype(np.int64)
    pairs = np.unique(np.stack([found, groups]), axis=1)
    counts = np.bincount(pairs[0]) if len(found) else np.zeros(0, np.int64)
    kept = np.flatnonzero((counts > 1) | (np.bincount(found, weights) < 2))
    if not len(kept):
        return np.zeros(len(found), dtype=np.int64)
    # Each stratum goes to the nearest kept one at or below it, the lowest ones to the first kept.
    home = np.searchsorted(kept, np.arange(len(counts)), side="right") - 1
    return np.maximum(0, home)[found]


def weighted_quantile(values: Ints, weights: Floats, share: float) -> int:
    """The smallest value that at least `share` of the weight does not exceed; 0 for no values."""
    if not len(values):
        return 0
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    place = np.searchsorted(reached, share * reached[-1] * (1 - 1e-12))
    return int(values[order][min(place, len(values) - 1)])
