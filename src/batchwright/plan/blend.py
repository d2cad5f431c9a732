"""Rows in groups to one order: groups whole, the mix of prefill and decode even, no late long rows.

After BatchLLM (arXiv 2412.03594) and BlendServe (arXiv 2411.16102): groups that share a prefix stay
together; where their ratio of decode to prefill differs, those above and those below the mean take
turns, so that no stretch of the run has only one kind. Groups are never sorted by that ratio.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

# Rows belong together if they share so many tokens, or such a share of the prompt if that is more.
LEAST_SHARED_TOKENS = 64
LEAST_SHARED_SHARE = 0.05

# Rows that share nothing make units of so many.
SMALLEST_UNIT = 64

# The mix is even enough if it strays no further than this share of the work.
EVEN = 0.02

# Rows whose output cap is above this quantile stay out of this last share of the work.
LONG_QUANTILE = 0.9
TAIL_SHARE = 0.25


class Units(NamedTuple):
    """Runs of rows that belong together, in sorted order; every array has one entry per unit.

    Attributes:
        rows: how many.
        prefill: prompt tokens that have to be computed.
        decode: output tokens expected.
        longest: the largest output cap.
    """

    rows: Ints
    prefill: Ints
    decode: Ints
    longest: Ints


def common_tokens(histogram: Ints, block_size: int) -> int:
    """Tokens that all rows begin with, but for one neighbour in a thousand.

    Args:
        histogram: how many rows share 0, 1, 2, … blocks with the row before them.
        block_size: tokens of a block.
    """
    total = int(histogram.sum())
    reached = np.flatnonzero(np.cumsum(histogram) > total // 1000)
    return int(reached[0]) * block_size if len(reached) else 0


def unit_starts(
    shared: Ints, prompts: Ints, common: int, first_row: int, largest: int
) -> npt.NDArray[np.bool_]:
    """Whether a unit begins at each row.

    Args:
        shared: tokens that each row has in common with the row before it.
        prompts: prompt tokens of each row.
        common: tokens that all rows have in common: they hold no group together.
        first_row: place of the first of these rows among all.
        largest: rows of a unit at most.
    """
    least = np.maximum(LEAST_SHARED_TOKENS, LEAST_SHARED_SHARE * (prompts - common))
    starts = np.asarray(shared - common < least)
    places = np.arange(first_row, first_row + len(starts))
    # Cut at fixed places, so that it does not matter in which pieces the rows come.
    starts |= places % largest == 0
    return starts


def gather_units(rows: Units) -> Units:
    """Neighbouring units joined until they are not tiny; what joins keeps its order."""
    count = len(rows.rows)
    if not count:
        return rows
    ends = np.cumsum(rows.rows)
    small = rows.rows < SMALLEST_UNIT
    # Small ones that end within the same stretch of rows, with no large one between, are joined.
    stretch = ends // SMALLEST_UNIT
    first = np.ones(count, dtype=np.bool_)
    first[1:] = ~(small[1:] & small[:-1] & (stretch[1:] == stretch[:-1]))
    starts = np.flatnonzero(first)
    return Units(
        np.add.reduceat(rows.rows, starts),
        np.add.reduceat(rows.prefill, starts),
        np.add.reduceat(rows.decode, starts),
        np.maximum.reduceat(rows.longest, starts),
    )


def blend(units: Units, long_cap: int) -> Ints:
    """The order in which the units run, as indexes; the sorted order wherever that is as good.

    Args:
        units: in sorted order.
        long_cap: rows with a larger output cap than this are long.
    """
    order = np.arange(len(units.rows))
    if len(order) > 2 and not _is_even(units):
        order = _take_turns(units)
    return _long_ones_early(units, order, long_cap)


def _is_even(units: Units) -> bool:
    """Whether the sorted order has about the same mix of prefill and decode everywhere."""
    prefill, decode = units.prefill.astype(float), units.decode.astype(float)
    if not (prefill.sum() and decode.sum()):
        return True
    apart = np.cumsum(prefill) / prefill.sum() - np.cumsum(decode) / decode.sum()
    return bool(np.abs(apart).max() <= EVEN)


def _take_turns(units: Units) -> Ints:
    """Units with more decode than the mean, and those with less, each in sorted order, by turns."""
    prefill, decode = units.prefill.astype(float), units.decode.astype(float)
    share = decode / decode.sum() - prefill / prefill.sum()
    over, under = np.flatnonzero(share > 0), np.flatnonzero(share <= 0)
    # By turns: whichever brings the sum of the shares back to zero. Merged by how far each queue
    # has come, the sum never strays further than one unit of each.
    debt_over, debt_under = np.cumsum(share[over]), np.cumsum(-share[under])
    behind = np.concatenate([debt_over - share[over], debt_under])
    both = np.concatenate([over, under])
    kind = np.concatenate([np.zeros(len(over)), np.ones(len(under))])
    return np.asarray(both[np.lexsort((kind, behind))])


def deal(places: Ints, at_once: int) -> Ints:
    """The same places, the first of them mixed: those of rows that engines take when they come up.

    The engine that is up first takes as many rows as it has room for. Sorted, they would be the
    longest of all, and the others would wait for it at the end.

    Args:
        places: of rows, each place once, shape (rows,).
        at_once: rows that all engines take together before one has ended.
    """
    first = min(at_once, len(places))
    mixed = np.random.default_rng(0).permutation(first)
    return np.where(places < first, mixed[np.minimum(places, first - 1)], places)


def _long_ones_early(units: Units, order: Ints, long_cap: int) -> Ints:
    """The same order, but the last share of the work is of units without long rows."""
    is_long = units.longest[order] > long_cap
    if not is_long.any() or is_long.mean() > 0.5:
        return order
    work = (units.prefill + 2 * units.decode)[order].astype(float)
    short = np.flatnonzero(~is_long)[::-1]
    room = TAIL_SHARE * work.sum()
    chosen = short[np.cumsum(work[short]) - work[short] < room]
    last = np.zeros(len(order), dtype=np.bool_)
    last[chosen] = True
    return np.concatenate([order[~last], order[last]])
