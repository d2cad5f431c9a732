from __future__ import annotations

import numpy as np
import pytest

from batchwright.core.profile import PrefixLevel
from batchwright.profile.blocks import block_signatures
from batchwright.profile.prefixes import PrefixTally
from batchwright.profile.recency import Recency
from batchwright.profile.table import BYTES_PER_BLOCK, BlockTable
from tests.unit.profile.workloads import (
    WORKLOADS,
    Rows,
    flat,
    lru_hit_rate,
    repeated_share,
    shared_blocks,
)

CACHES = (320, 1000, 4000, 16_000, 60_000, 10_000_000)


def tally_of(
    rows: Rows, block_size: int = 16, max_blocks: int = 1 << 20, batch: int = 256
) -> PrefixTally:
    tally = PrefixTally(block_size, max_blocks)
    for start in range(0, len(rows), batch):
        ids, offsets, lengths = flat(rows[start : start + batch])
        tally.add(block_signatures(ids, offsets, block_size), lengths)
    return tally


@pytest.mark.parametrize("block_size", [16, 128])
@pytest.mark.parametrize("name", WORKLOADS)
def test_hit_rates_equal_a_simulated_cache(name: str, block_size: int) -> None:
    rows = WORKLOADS[name](np.random.default_rng(1), 1200)
    tally = tally_of(rows, block_size)
    for cache in CACHES:
        true = lru_hit_rate(rows, block_size, cache)
        assert tally.hit_rate(cache) == pytest.approx(true, abs=0.002), cache
        best = lru_hit_rate(sorted(rows), block_size, cache)
        assert tally.best_hit_rate(cache) == pytest.approx(best, abs=0.002), cache
    assert tally.shareable_share == pytest.approx(repeated_share(rows, block_size))
    assert tally.hit_rate(None) == tally.hit_rate(10_000_000)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_sampled_tally_is_within_two_points(name: str) -> None:
    rows = WORKLOADS[name](np.random.default_rng(2), 2000)
    tally = tally_of(rows, max_blocks=1200)
    assert tally.sampled_share < 1
    for cache in CACHES:
        assert tally.hit_rate(cache) == pytest.approx(lru_hit_rate(rows, 16, cache), abs=0.02)
    assert tally.shareable_share == pytest.approx(repeated_share(rows, 16), abs=0.02)


@pytest.mark.parametrize("name", WORKLOADS)
def test_levels_count_the_shared_prefixes(name: str) -> None:
    rows = WORKLOADS[name](np.random.default_rng(1), 600)
    shared = shared_blocks(rows, 16)
    levels = tally_of(rows).levels()
    assert levels[-1] == PrefixLevel(None, sum(shared.values()), 16 * sum(shared.values()))
    for level in levels[:-1]:
        assert level.depth_tokens is not None
        depth = level.depth_tokens // 16
        assert level.distinct == shared[depth]
        assert level.working_set_tokens == 16 * sum(n for d, n in shared.items() if d <= depth)


def test_the_size_of_the_batches_does_not_matter() -> None:
    rows = WORKLOADS["tree"](np.random.default_rng(5), 500)
    one, other = tally_of(rows, batch=500), tally_of(rows, batch=7)
    assert one.profile(2000) == other.profile(2000)


def test_the_largest_prefixes_are_named_once_each() -> None:
    rng = np.random.default_rng(0)
    head = rng.integers(0, 9999, 64).tolist()
    document = head + rng.integers(0, 9999, 320).tolist()
    rows = [head + rng.integers(0, 9999, 20).tolist() for _ in range(100)]
    rows += [document + rng.integers(0, 9999, 20).tolist() for _ in range(30)]
    top = tally_of(rows).profile(None).top
    assert [(one.tokens, one.rows) for one in top[:2]] == [(384, 30), (64, 130)]
    assert all(rows[one.row][: one.tokens] == document[: one.tokens] for one in top[:2])


def test_an_exact_repeat_still_computes_its_last_block() -> None:
    tally = tally_of([list(range(32))] * 4)
    assert tally.shareable_share == 0.75
    assert tally.hit_rate(None) == tally.best_hit_rate(None) == 0.375


def test_nothing_to_follow() -> None:
    tally = tally_of([[1, 2, 3], []])
    profile = tally.profile(1000)
    assert profile.shareable_share == profile.hit_rate_file_order == 0
    assert profile.levels == (PrefixLevel(None, 0, 0),)
    assert profile.top == ()


def test_many_old_positions_are_merged_with_little_error() -> None:
    rng = np.random.default_rng(0)
    recency = Recency()
    last = np.full(3000, -1)
    rows, previous = np.arange(90_000), np.empty(90_000, dtype=np.int64)
    for row, block in enumerate(rng.integers(0, 3000, 90_000).tolist()):
        previous[row], last[block] = last[block], row
    found = recency.use(rows, previous, np.ones(90_000))
    for row in range(80_000, 90_000, 997):
        since = previous[row]
        later = sum(1 for i in range(since + 1, row) if previous[i] <= since)
        assert found[row] == pytest.approx(later, rel=0.01, abs=1)


def test_memory_is_what_the_docstring_says() -> None:
    table = BlockTable(1 << 20)
    table.find_or_add(np.random.default_rng(0).integers(0, 1 << 63, 1 << 16).astype(np.uint64))
    columns = ("signature", "last", "weight", "count", "depth", "parent")
    used = sum(getattr(table, name).nbytes for name in columns) + table._slots.nbytes
    assert used / len(table) <= BYTES_PER_BLOCK
