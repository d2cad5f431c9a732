from __future__ import annotations

import numpy as np

from batchwright.profile.duplicates import DuplicateTally, prompt_digests
from tests.unit.profile.workloads import flat


def test_tokens_cap_and_sampling_all_count() -> None:
    rows = [[1, 2], [1, 2], [1, 2], [1, 2], [1], [2], [1, 2]]
    ids, offsets, lengths = flat(rows)
    caps, sampling = [8, 8, 9, 8, 8, 8, 8], ["{}", "{}", "{}", '{"seed":1}', "{}", "{}", "{}"]
    tally = DuplicateTally()
    repeats = tally.add(prompt_digests(ids, offsets, caps, sampling), lengths)
    assert repeats.tolist() == [False, True, False, False, False, False, True]
    assert (tally.rows, tally.tokens, tally.exact) == (2, 4, True)


def test_keys_that_agree_in_their_first_half_are_told_apart() -> None:
    keys = np.array([[7, 1], [7, 3], [7, 2], [7, 3]], dtype=np.uint64)
    tally = DuplicateTally()
    one = np.ones(1, dtype=np.int64)
    found = [bool(tally.add(keys[i : i + 1], one)[0]) for i in range(4)]
    assert found == [False, False, False, True]
    assert tally.add(keys, np.ones(4, dtype=np.int64)).all()


def test_beyond_its_memory_it_estimates() -> None:
    rng = np.random.default_rng(0)
    pool = rng.integers(0, 1 << 64, size=(40_000, 2), dtype=np.uint64)
    order = rng.permutation(np.repeat(np.arange(40_000), 2))
    tally = DuplicateTally(max_keys=4000)
    for part in np.array_split(order, 20):
        tally.add(pool[part], np.full(len(part), 10))
    assert not tally.exact
    assert abs(tally.rows / 40_000 - 1) < 0.1
    assert tally.tokens == 10 * tally.rows
