"""Which rows the pilot runs: some of every prompt length, and the longest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BANDS = 20
FEWEST_PER_BAND = 4
# One in so many rows of the pilot is one of the longest prompts of the job.
LONGEST_SHARE = 50

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows of the pilot, and how many rows of the job each stands for.

    Attributes:
        rows: row indexes, ascending, int64[n].
        weights: rows of the job per row of the sample, float64[n]; they add up to the job's rows.
        strata: band of each row, ascending with prompt length, int64[n].
        groups: the same number for rows that share a beginning and so were drawn together, int64[n].
    """

    rows: Ints
    weights: npt.NDArray[np.float64]
    strata: Ints
    groups: Ints


def choose_rows(
    lengths: npt.NDArray[np.integer], wanted: int, seed: int, groups: Ints | None = None
) -> Ints:
    """A stratified sample without replacement; the same arguments give the same rows.

    The rows are ranked by prompt length (rows of equal length by position, so that a band of them
    is spread over the file). The very longest form a band that is taken whole; the others are cut
    into `BANDS` quantile bands of equal size, from each of which about the same number is drawn.

    Args:
        lengths: prompt tokens of every row that will run, int[rows].
        wanted: rows of the pilot; all rows are taken when there are not more.
        seed: of the draw.
        groups: a number for each row, the same for rows that share a beginning: these come
            together, by their mean length. None where rows are drawn one by one.

    Returns:
        Row indexes, ascending.
    """
    count = len(lengths)
    wanted = max(0, wanted)
    if wanted >= count:
        return np.arange(count, dtype=np.int64)
    if groups is None:
        groups = np.arange(count)
    ranked, longest = _ranked(lengths, wanted)
    rest = ranked[: count - longest]
    if len(rest) and int(groups.max()) + 1 < count:
        rest = rest[np.lexsort((rest, groups[rest], _mean_lengths(lengths, groups)[rest]))]
    bands = np.array_split(rest, _num_bands(wanted - longest))
    generator = np.random.default_rng(seed)
    quotas = _shares([len(band) for band in bands], wanted - longest)
    drawn = [
        _draw(band, groups[band], quota, generator)
        for band, quota in zip(bands, quotas, strict=True)
    ]
    return np.sort(np.concatenate([*drawn, ranked[count - longest :]]))


def weigh(
    lengths: npt.NDArray[np.integer], rows: Ints, wanted: int, groups: Ints | None = None
) -> Sample:
    """The rows of a pilot, with the bands of prompt length that they stand for.

    It needs no knowledge of how they were drawn, but that the longest are among them.

    Args:
        lengths: prompt tokens of every row that could be drawn, int[rows].
        rows: indexes of those that were, ascending.
        wanted: rows that the pilot was to have.
        groups: a number for each row of `rows`, the same for those that share a beginning; None if
            none do.
    """
    count = len(lengths)
    if groups is None:
        groups = np.arange(len(rows), dtype=np.int64)
    if len(rows) >= count or not len(rows):
        return Sample(rows, np.ones(len(rows)), np.zeros(len(rows), dtype=np.int64), groups)
    ranked, longest = _ranked(lengths, wanted)
    bands = np.array_split(np.arange(count - longest), _num_bands(wanted - longest))
    sizes = np.array([*(len(band) for band in bands), longest])
    band_at = np.repeat(np.arange(len(sizes)), sizes)
    of_row = np.empty(count, dtype=np.int64)
    of_row[ranked] = band_at
    taken = np.bincount(of_row[rows], minlength=len(sizes))
    into = _nearest_filled(taken)
    sizes = np.bincount(into, sizes, minlength=len(sizes))
    strata = of_row[rows]
    return Sample(rows, (sizes / np.maximum(1, taken))[strata], strata, groups)


def _nearest_filled(taken: Ints) -> Ints:
    """For each band the band whose rows stand for it: its own, or the nearest with any."""
    filled = np.flatnonzero(taken)
    away = np.abs(np.arange(len(taken))[:, None] - filled[None, :])
    return np.asarray(filled[np.argmin(away, axis=1)])


def _ranked(lengths: npt.NDArray[np.integer], wanted: int) -> tuple[Ints, int]:
    """Row indexes by length, and how many of the last are the longest, which are taken whole."""
    return np.argsort(lengths, kind="stable").astype(np.int64), wanted // LONGEST_SHARE


def _mean_lengths(lengths: npt.NDArray[np.integer], groups: Ints) -> npt.NDArray[np.float64]:
    """Of the group of each row."""
    means = np.bincount(groups, lengths) / np.maximum(1, np.bincount(groups))
    return np.asarray(means[groups])


def _draw(band: Ints, groups: Ints, quota: int, generator: np.random.Generator) -> Ints:
    """So many rows of a band, whole groups but for the last."""
    _, of_row = np.unique(groups, return_inverse=True)
    if not len(band) or int(of_row.max()) + 1 == len(band):
        return np.asarray(generator.choice(band, quota, replace=False, shuffle=False))
    turn = generator.permutation(int(of_row.max()) + 1)
    return np.asarray(band[np.argsort(turn[of_row], kind="stable")[:quota]])


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
