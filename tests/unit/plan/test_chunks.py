from __future__ import annotations

import numpy as np
import pytest

from batchwright.core.records import OrderedPart, Slice
from batchwright.plan.chunks import (
    CHUNKS_PER_SIZE,
    LARGEST_CHUNK,
    SMALLEST_CHUNK,
    SMALLEST_TAIL,
    Ahead,
    count_rows,
    cut_chunks,
    plan_chunks,
    rows_in_chunk,
    slices_of_rows,
    take_planned,
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


def test_with_several_engines_the_last_chunks_get_smaller() -> None:
    chunks, rest = cut_chunks([Slice("a", 0, 5000, 0)], 0, None, last=True, replicas=4)
    sizes = [chunk.num_rows for chunk in chunks]
    assert rest == []
    assert sum(sizes) == 5000
    assert sizes[0] == SMALLEST_CHUNK
    tail = sizes[sizes.index(min(sizes[:-1])) - 1 :]
    assert tail == sorted(tail, reverse=True)
    assert min(sizes[:-1]) == SMALLEST_TAIL
    assert max(sizes[-8:]) <= 2 * SMALLEST_TAIL


def test_a_fixed_size_has_no_tail() -> None:
    chunks, _ = cut_chunks([Slice("a", 0, 40, 0)], 0, 10, last=True, replicas=8)
    assert [chunk.num_rows for chunk in chunks] == [10] * 4


def test_only_so_much_is_cut_as_is_asked_for() -> None:
    waiting = [Slice("a", 0, 100, 0)]
    for ahead, chunks_cut in ((Ahead(0, 0), 0), (Ahead(2, 0), 2), (Ahead(0, 25), 3)):
        chunks, rest = cut_chunks(waiting, 0, 10, last=True, ahead=ahead)
        assert len(chunks) == chunks_cut
        assert count_rows(rest) == 100 - 10 * chunks_cut
    more, rest = cut_chunks(rest, len(chunks), 10, last=True)
    assert [row for chunk in [*chunks, *more] for row in rows_of(chunk)] == list(range(100))


def test_planned_chunks_are_taken_one_by_one() -> None:
    waiting = [Slice("g", start, start + 5, -1) for start in range(0, 50, 5)]
    chunks, rest = take_planned(waiting, 7, Ahead(2, 12))
    assert [(chunk.number, chunk.slices) for chunk in chunks] == [
        (7, (waiting[0],)), (8, (waiting[1],)), (9, (waiting[2],)),
    ]  # fmt: skip
    assert rest == waiting[3:]
    assert take_planned(rest, 10, None)[1] == []


def test_units_stay_whole_where_they_can() -> None:
    assert plan_chunks([8] * 100, 0, None, 1) == [256, 256, 256, 32]
    assert plan_chunks([100] * 5, 0, None, 1) == [300, 200]
    assert plan_chunks([30] * 9, 0, 100, 1) == [100, 100, 70]
    assert plan_chunks([1000], 0, None, 1) == [256, 256, 256, 232]
    assert plan_chunks([200, 300, 40], 0, None, 1) == [200, 300, 40]
    assert plan_chunks([], 0, None, 1) == []


def test_rows_are_found_in_their_parts() -> None:
    parts = [
        OrderedPart(f"p{index}", 0, index, "f", first, 0, rows, 0)
        for index, (first, rows) in enumerate([(0, 4), (4, 0), (4, 3), (7, 5)])
    ]
    rows = np.array([1, 2, 4, 6, 11])
    assert slices_of_rows(parts, rows) == [
        Slice("p0", 1, 3, 0), Slice("p2", 0, 1, 4), Slice("p2", 2, 3, 4), Slice("p3", 4, 5, 7),
    ]  # fmt: skip
    assert slices_of_rows(parts, rows[:0]) == []
