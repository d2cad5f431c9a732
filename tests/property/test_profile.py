from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchwright.profile.blocks import block_signatures
from batchwright.profile.duplicates import DuplicateTally, prompt_digests
from batchwright.profile.lengths import LengthTally
from batchwright.profile.prefixes import PrefixTally
from tests.unit.profile.workloads import flat, lru_hit_rate, repeated_share

# Few different tokens, so that prefixes, whole rows and blocks out of place repeat.
token_rows = st.lists(st.lists(st.integers(0, 2), max_size=14), max_size=40)
lengths = st.lists(st.one_of(st.integers(0, 300), st.integers(60_000, 70_000)), min_size=1)


@given(lengths, st.floats(0, 100), st.integers(1, 5))
def test_a_merged_tally_is_a_single_pass_and_its_percentiles_are_numpys(
    values: list[int], percent: float, parts: int
) -> None:
    whole, merged = LengthTally(keep=4), LengthTally(keep=4)
    every = np.array(values)
    ids = [str(value) for value in values]
    whole.add(every)
    whole.note_longest(every, np.arange(len(every)), ids)
    for rows in np.array_split(np.arange(len(every)), parts):
        one = LengthTally(keep=4)
        one.add(every[rows])
        one.note_longest(every[rows], rows, [ids[row] for row in rows])
        merged.merge(one)
    assert merged.histogram() == whole.histogram()
    assert merged.longest == whole.longest
    assert whole.percentile(percent) == np.percentile(every, percent, method="inverted_cdf")


@given(token_rows, st.integers(1, 5))
def test_signatures_are_equal_if_and_only_if_prefixes_are(
    rows: list[list[int]], block_size: int
) -> None:
    ids, offsets, _ = flat(rows)
    values, starts = block_signatures(ids, offsets, block_size)
    meaning: dict[int, tuple[int, ...]] = {}
    for row, (start, stop) in enumerate(itertools.pairwise(starts)):
        assert stop - start == len(rows[row]) // block_size
        for depth, value in enumerate(values[start:stop].tolist(), 1):
            prefix = tuple(rows[row][: depth * block_size])
            assert meaning.setdefault(value, prefix) == prefix
    assert len(set(meaning.values())) == len(meaning)


@given(token_rows, st.integers(1, 7))
def test_duplicates_equal_a_dict(rows: list[list[int]], batch: int) -> None:
    tally, seen = DuplicateTally(), set()
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        ids, offsets, sizes = flat(part)
        digests = prompt_digests(ids, offsets, [1] * len(part), ["{}"] * len(part))
        expected = []
        for row in part:
            expected.append(tuple(row) in seen)
            seen.add(tuple(row))
        assert tally.add(digests, sizes).tolist() == expected
    assert tally.rows == len(rows) - len(seen)


@given(token_rows, st.integers(1, 4), st.integers(1, 9), st.integers(0, 30))
def test_hit_rates_are_a_simulated_caches(
    rows: list[list[int]], block_size: int, batch: int, cache: int
) -> None:
    tally = PrefixTally(block_size)
    for start in range(0, len(rows), batch):
        ids, offsets, sizes = flat(rows[start : start + batch])
        tally.add(block_signatures(ids, offsets, block_size), sizes)
    assert abs(tally.hit_rate(cache) - lru_hit_rate(rows, block_size, cache)) < 1e-9
    assert abs(tally.shareable_share - repeated_share(rows, block_size)) < 1e-9
    # Sorting keeps what shares together; a shorter prompt in between hides nothing.
    assert tally.best_hit_rate(None) == tally.hit_rate(None)
