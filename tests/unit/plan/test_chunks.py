from __future__ import annotations

import numpy as np
import pytest

from batchwright.core.records import Slice
from batchwright.plan.chunks import (
    CHUNKS_PER_SIZE,
    LARGEST_CHUNK,
    SMALLEST_CHUNK,
    cut_chunks,
    rows_in_chunk,
    valid_slices,
)
from tests.unit.rundir.small_runs import rows_of


def test_chunks_are_small_first_and_grow_to_a_limit() -> None:
    sizes = [rows_in_chunk(number, None) for number in range(20 * CHUNKS_PER_SIZE)]
    assert sizes[0] == SMALLEST_CHUNK
    assert sizes[CHUNKS_PER_SIZE] == 2 * SMALLEST_CHUNK
    assert sizes[-1] == LARGEST_CHUNK
    assert sizes == sorted(sizes)
    assert rows_in_chunk(10**9, None) == LARGEST_CHUNK


def test_a_fixed_size_is_the_size_of_every_chunk() -> None:
    assert {rows_in_chunk(number, 7) for number in (0, 1, 10**6)} == {7}


@pytest.mark.parametrize(
    ("valid", "runs"),
    [
        ([], []),
        ([0, 0], []),
        ([1, 1, 1], [(0, 3)]),
        ([0, 1, 1, 0, 1], [(1, 3), (4, 5)]),
    ],
)
def test_valid_rows_become_runs(valid: list[int], runs: list[tuple[int, int]]) -> None:
    slices = valid_slices("part", 100, np.array(valid, dtype=bool))
    assert slices == [Slice("part", start, stop, 100) for start, stop in runs]


def test_a_remainder_waits_until_the_last() -> None:
    waiting = [Slice("a", 0, 5, 0)]
    chunks, rest = cut_chunks(waiting, 3, 2, last=False)
    assert [(chunk.number, rows_of(chunk)) for chunk in chunks] == [(3, [0, 1]), (4, [2, 3])]
    assert rest == [Slice("a", 4, 5, 0)]
    chunks, rest = cut_chunks(rest, 5, 2, last=True, generation=2)
    assert [(chunk.name, rows_of(chunk)) for chunk in chunks] == [("chunk-2-000005", [4])]
    assert rest == []


def test_no_rows_make_no_chunk() -> None:
    assert cut_chunks([], 0, None, last=True) == ([], [])


def test_a_chunk_may_span_parts() -> None:
    waiting = [Slice("a", 1, 3, 0), Slice("b", 0, 1, 3), Slice("b", 2, 4, 3)]
    ((chunk,), rest) = cut_chunks(waiting, 0, 4, last=False)
    assert chunk.num_rows == 4
    assert rows_of(chunk) == [1, 2, 3, 5]
    assert rest == [Slice("b", 3, 4, 3)]
