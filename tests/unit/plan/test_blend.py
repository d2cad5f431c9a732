from __future__ import annotations

import numpy as np
import pytest

from batchwright.plan.blend import (
    EVEN,
    TAIL_SHARE,
    Units,
    blend,
    common_tokens,
    gather_units,
    unit_starts,
)

NO_LONG = 10**9


def units(rows: list[int], prefill: list[int], decode: list[int], longest: list[int]) -> Units:
    return Units(*(np.asarray(one, dtype=np.int64) for one in (rows, prefill, decode, longest)))


def even(count: int, prefill: int = 100, decode: int = 10) -> Units:
    return units([64] * count, [prefill] * count, [decode] * count, [1] * count)


def apart(found: Units, order: np.ndarray) -> float:
    prefill = np.cumsum(found.prefill[order]) / found.prefill.sum()
    decode = np.cumsum(found.decode[order]) / found.decode.sum()
    return float(np.abs(prefill - decode).max())


def test_equal_units_stay_as_they_are() -> None:
    assert blend(even(50), NO_LONG).tolist() == list(range(50))


def test_units_that_differ_a_little_stay_as_they_are() -> None:
    rng = np.random.default_rng(1)
    noisy = even(200)._replace(prefill=100 + rng.integers(-10, 10, 200))
    assert blend(noisy, NO_LONG).tolist() == list(range(200))


@pytest.mark.parametrize("decode_last", [True, False])
def test_prefill_and_decode_take_turns(decode_last: bool) -> None:
    """First all units with long prompts, then all with long answers; and the other way round."""
    sides = [([3000] * 100, [4] * 100), ([200] * 100, [600] * 100)]
    first, second = sides if decode_last else sides[::-1]
    both = units([64] * 200, first[0] + second[0], first[1] + second[1], [1] * 200)
    assert apart(both, np.arange(200)) > 0.8
    order = blend(both, NO_LONG)
    assert sorted(order.tolist()) == list(range(200))
    assert apart(both, order) < 0.02 <= EVEN
    # Within a kind nothing moves: neighbours share what they share.
    assert order[order < 100].tolist() == list(range(100))
    assert order[order >= 100].tolist() == list(range(100, 200))


def test_long_rows_do_not_come_last() -> None:
    found = even(100)._replace(longest=np.array([10] * 92 + [900] * 8))
    order = blend(found, 100)
    work = np.cumsum((found.prefill + 2 * found.decode)[order])
    before = work[found.longest[order] > 100] / work[-1]
    assert before.max() <= 1 - TAIL_SHARE + 0.01
    assert sorted(order.tolist()) == list(range(100))
    short = order[found.longest[order] <= 100]
    assert short.tolist() == list(range(92))


def test_long_rows_everywhere_move_nothing() -> None:
    found = even(10)._replace(longest=np.array([900] * 10))
    assert blend(found, 100).tolist() == list(range(10))


def test_too_few_short_units_for_the_tail_are_all_last() -> None:
    found = units([64] * 4, [10, 10, 1000, 1000], [10] * 4, [1, 1, 900, 900])
    assert blend(found, 100).tolist()[-2:] == [0, 1]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_hardly_anything_to_blend(count: int) -> None:
    assert blend(even(count), NO_LONG).tolist() == list(range(count))


def test_rows_that_share_enough_belong_together() -> None:
    shared = np.array([0, 63, 64, 400, 400])
    prompts = np.array([500, 500, 500, 5000, 20_000])
    starts = unit_starts(shared, prompts, 0, 0, 1000)
    assert starts.tolist() == [True, True, False, False, True]


def test_what_all_rows_begin_with_holds_no_group_together() -> None:
    shared = np.array([0, 2000, 2100, 2000])
    starts = unit_starts(shared, np.full(4, 2500), 2000, 0, 1000)
    assert starts.tolist() == [True, True, False, True]
    blocks = np.zeros(200, dtype=np.int64)
    blocks[[0, 125, 131]] = [1, 5000, 5000]
    assert common_tokens(blocks, 16) == 2000
    assert common_tokens(np.zeros(1, dtype=np.int64), 16) == 0


def test_a_unit_is_cut_at_the_same_rows_in_whatever_pieces_they_come() -> None:
    shared, prompts = np.full(100, 500), np.full(100, 1000)
    whole = unit_starts(shared, prompts, 0, 0, 30)
    parts = [unit_starts(shared[a:b], prompts[a:b], 0, a, 30) for a, b in ((0, 17), (17, 100))]
    assert np.flatnonzero(whole).tolist() == [0, 30, 60, 90]
    assert np.concatenate(parts).tolist() == whole.tolist()


def test_tiny_units_are_joined_and_large_ones_are_not() -> None:
    found = gather_units(
        units([1] * 200 + [100, 100], [5] * 202, [2] * 202, [1] * 100 + [7] + [1] * 101)
    )
    assert found.rows.sum() == 400
    assert found.prefill.sum() == 5 * 202
    assert found.rows[-2:].tolist() == [100, 100]
    assert len(found.rows) <= 7
    assert found.longest.max() == 7
    assert gather_units(even(0)).rows.tolist() == []
