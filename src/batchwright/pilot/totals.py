"""From the rows of a stratified sample to the sum over all rows, and how sure it is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Studentised deviations beyond this are those of resamples that missed the whole tail.
_FARTHEST = 6.0


class Strata:
    """Rows of a sample, sorted by stratum.

    Args:
        strata: stratum of each row, int64[n].
        weights: rows of the job that each stands for, float64[n].

    A single row that stands for others too shows no spread, and its stratum joins a neighbour.
    """

    def __init__(self, strata: Ints, weights: Floats) -> None:
        self._order = np.argsort(strata, kind="stable")
        ids = _joined(strata[self._order], weights[self._order])
        self._starts = np.flatnonzero(np.diff(ids, prepend=-1))
        self._counts = np.diff(self._starts, append=len(ids))
        self._sizes = np.add.reduceat(weights[self._order], self._starts)
        share = np.minimum(1.0, self._counts / self._sizes)
        # Finite population correction: rows that were measured are not uncertain.
        self._open = 1.0 - share

    def total(self, values: Floats) -> float:
        """The sum over all rows: mean times size of each stratum."""
        return float(self._sizes @ self._means(values[self._order]))

    def draws(self, values: Floats, draws: int, generator: np.random.Generator) -> Floats:
        """Values that the sum might have, float64[draws], from the studentised bootstrap.

        Deviations are measured in standard errors of the resample they come from (Hall 1988), so
        that a resample without the largest rows, which is low and looks sure of it, makes the
        upper side wider: what a mean of heavy-tailed values needs.
        """
        ordered = values[self._order]
        means = self._means(ordered)
        error = float(np.sqrt(self._variance(ordered, means)))
        counts = np.repeat(self._counts, self._counts)
        picks = np.floor(generator.random((draws, len(ordered))) * counts).astype(np.int64)
        drawn = ordered[picks + np.repeat(self._starts, self._counts)]
        found = self._means(drawn)
        spread = np.sqrt(self._variance(drawn, found))
        apart = ((found - means) * np.sqrt(self._open)) @ self._sizes
        scores = apart / np.maximum(spread, max(1e-300, error / 10))
        shifted: Floats = self._sizes @ means - np.clip(scores, -_FARTHEST, _FARTHEST) * error
        return np.maximum(shifted, float(values.sum()))

    def _means(self, ordered: Floats) -> Floats:
        found: Floats = np.add.reduceat(ordered, self._starts, axis=-1) / self._counts
        return found

    def _variance(self, ordered: Floats, means: Floats) -> Floats:
        """Of the estimated sum: Cochran, Sampling Techniques (1977), formula 5.11."""
        squares = np.add.reduceat(ordered * ordered, self._starts, axis=-1)
        within = np.maximum(0.0, squares - self._counts * means * means)
        within = within / np.maximum(1, self._counts - 1)
        found: Floats = (within * self._open / self._counts) @ (self._sizes**2)
        return found


def _joined(ids: Ints, weights: Floats) -> Ints:
    """Ascending stratum numbers, singles given the number of a neighbour."""
    found = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    counts = np.bincount(found)
    kept = np.flatnonzero((counts > 1) | (np.bincount(found, weights) < 2))
    if not len(kept):
        return np.zeros(len(ids), dtype=np.int64)
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
