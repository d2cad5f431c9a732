"""Which rows the pilot runs: some of every prompt length, and the longest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BANDS = 20
FEWEST_PER_BAND = 4
# One in so many rows of the pilot is one of the longest prompts of the job.
LONGEST_SHARE = 50


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows of the pilot, and how many rows of the job each stands for.

    Attributes:
        rows: row indexes, ascending, int64[n].
        weights: rows of the job per row of the sample, float64[n]; they add up to the job's rows.
        strata: band of each row, ascending with prompt length, int64[n].
    """

    rows: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]
    strata: npt.NDArray[np.int64]


def choose_rows(lengths: npt.NDArray[np.integer], wanted: int, seed: int) -> Sample:
    """A stratified sample without replacement; the same arguments give the same rows.

    The rows are ranked by prompt length (rows of equal length by position, so that a band of them
    is spread over the file). The very longest form a band that is taken whole; the others are cut
    into `BANDS` quantile bands of equal size, from each of which about the same number is drawn.

    Args:
        lengths: prompt tokens of every row that will run, int[rows].
        wanted: rows of the pilot; all rows are taken when there are not more.
        seed: of the draw.
    """
    count = len(lengths)
    wanted = max(0, wanted)
    if wanted >= count:
        whole = np.arange(count, dtype=np.int64)
        return Sample(whole, np.ones(count), np.zeros(count, dtype=np.int64))
    ranked = np.argsort(lengths, kind="stable").astype(np.int64)
    longest = wanted // LONGEST_SHARE
    bands = np.array_split(ranked[: count - longest], _num_bands(wanted - longest))
    generator = np.random.default_rng(seed)
    quotas = _shares([len(band) for band in bands], wanted - longest)
    drawn = [
        generator.choice(band, quota, replace=False, shuffle=False)
        for band, quota in zip(bands, quotas, strict=True)
    ]
    drawn.append(ranked[count - longest :])
    sizes = np.array([*(len(band) for band in bands), longest])
    taken = np.array([len(rows) for rows in drawn])
    strata = np.repeat(np.arange(len(drawn)), taken)
    rows = np.concatenate(drawn)
    order = np.argsort(rows)
    weights = (sizes / np.maximum(1, taken))[strata]
    return Sample(rows[order], weights[order], strata[order].astype(np.int64))


def _num_bands(wanted: int) -> int:
    """At least `FEWEST_PER_BAND` rows are drawn from each band, so that it shows its spread."""
    return max(1, min(BANDS, wanted // FEWEST_PER_BAND))


def _shares(sizes: list[int], wanted: int) -> list[int]:
    """`wanted` shared out in proportion to the sizes, exactly (largest remainder)."""
    whole = sum(sizes)
    exact = [size * wanted / max(1, whole) for size in sizes]
    quotas = [int(share) for share in exact]
    order = sorted(range(len(sizes)), key=lambda band: quotas[band] - exact[band])
    for band in order[: wanted - sum(quotas)]:
        quotas[band] += 1
    return quotas
