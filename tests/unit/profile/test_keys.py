from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from batchwright.profile.blocks import block_signatures
from batchwright.profile.keys import (
    KEY_BYTES,
    length_keys,
    longest_keys,
    prefix_keys,
    shared_blocks,
)

BLOCK = 4


def keys_of(prompts: list[list[int]]) -> pa.LargeBinaryArray:
    ids = np.array([token for prompt in prompts for token in prompt], dtype=np.int32)
    offsets = np.cumsum([0, *map(len, prompts)])
    return prefix_keys(block_signatures(ids, offsets, BLOCK))


def test_rows_with_a_common_prefix_stand_together_when_sorted() -> None:
    rng = np.random.default_rng(5)
    documents = rng.integers(0, 1000, (20, 6 * BLOCK))
    prompts = [
        [*documents[i % 20].tolist(), *rng.integers(0, 1000, 9).tolist()] for i in range(200)
    ]
    keys = keys_of(prompts).to_pylist()
    order = sorted(range(200), key=lambda row: (keys[row], row))
    groups = [row % 20 for row in order]
    assert sum(a != b for a, b in itertools.pairwise(groups)) == 19


def test_a_key_has_two_bytes_a_block() -> None:
    keys = keys_of([[1] * 11, [1] * 3, [], [1] * 8])
    assert [len(key) for key in keys.to_pylist()] == [2 * KEY_BYTES, 0, 0, 2 * KEY_BYTES]
    assert keys[0].as_py() == keys[3].as_py()


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_shared_blocks_are_counted_whatever_the_pieces(cut: int) -> None:
    a, b, c = [1] * BLOCK, [2] * BLOCK, [3] * BLOCK
    keys = keys_of([[*a, *b, *c], [*a, *b], [*a, *b, *a], [], [*c, *b], [*c, *b, *b]])
    expected = [0, 2, 2, 0, 0, 2]
    assert shared_blocks(keys, b"").tolist() == expected
    first = shared_blocks(keys[:cut], b"").tolist()
    rest = shared_blocks(keys[cut:], keys[cut - 1].as_py()).tolist()
    assert first + rest == expected


def test_no_rows_share_nothing() -> None:
    assert shared_blocks(keys_of([]), b"").tolist() == []
    assert shared_blocks(keys_of([[], []]), b"").tolist() == [0, 0]


def test_lengths_are_in_buckets_with_the_longest_first() -> None:
    lengths = np.array([1, 100, 101, 120, 4000, 0])
    keys = length_keys(lengths).to_pylist()
    assert keys[1] == keys[2]
    order = sorted(range(6), key=lambda row: keys[row])
    assert lengths[order][:2].tolist() == [4000, 120]
    assert keys[0] == keys[5]


def test_the_largest_caps_come_first_and_are_in_no_order_among_themselves() -> None:
    caps = np.array([10, *range(4101, 4301), 300, 10])
    keys = longest_keys(caps, 0).to_pylist()
    order = sorted(range(len(caps)), key=lambda row: keys[row])
    assert set(order[:200]) == set(range(1, 201))
    assert order[200] == 201
    halves = [sum(row > 100 for row in order[start : start + 100]) for start in (0, 100)]
    assert all(40 < half < 60 for half in halves), "each half has its share of the file's end"


def test_keys_by_cap_do_not_depend_on_the_pieces() -> None:
    caps = np.arange(1, 101)
    whole = longest_keys(caps, 0).to_pylist()
    pieces = [*longest_keys(caps[:33], 0).to_pylist(), *longest_keys(caps[33:], 33).to_pylist()]
    assert whole == pieces
