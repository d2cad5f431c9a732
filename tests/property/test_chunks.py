"""Chunks hold exactly the valid rows, in order, whatever the borders of parts and batches."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright.core.records import Chunk, Slice
from batchwright.plan.chunks import cut_chunks, divide, rows_in_chunk, valid_slices
from tests.unit.rundir.small_runs import rows_of

PARTS = st.lists(st.lists(st.booleans(), max_size=12), max_size=10)


def cut(parts: list[list[bool]], batches: list[int], fixed: int | None) -> list[Chunk]:
    """Cut the parts in batches of so many parts, as the sequencer does."""
    chunks: list[Chunk] = []
    waiting: list[Slice] = []
    first_row = index = 0
    sizes = [*batches, len(parts)]
    while index < len(parts):
        size = max(1, sizes.pop(0)) if sizes else len(parts)
        for number, valid in enumerate(parts[index : index + size], index):
            waiting += valid_slices(f"part-{number}", first_row, np.array(valid, dtype=bool))
            first_row += len(valid)
        index += size
        fresh, waiting = cut_chunks(waiting, len(chunks), fixed, last=index >= len(parts))
        chunks += fresh
    return chunks


def valid_rows(parts: list[list[bool]]) -> list[int]:
    flat = [valid for part in parts for valid in part]
    return [row for row, valid in enumerate(flat) if valid]


@settings(max_examples=150, deadline=None)
@given(PARTS, st.lists(st.integers(1, 4), max_size=10), st.integers(1, 9))
def test_chunks_cover_the_valid_rows_once_in_order(
    parts: list[list[bool]], batches: list[int], fixed: int
) -> None:
    chunks = cut(parts, batches, fixed)
    assert [row for chunk in chunks for row in rows_of(chunk)] == valid_rows(parts)
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    assert all(chunk.num_rows == fixed for chunk in chunks[:-1])
    assert all(0 < chunk.num_rows <= fixed for chunk in chunks)


@settings(max_examples=100, deadline=None)
@given(PARTS, st.lists(st.integers(1, 4), max_size=10), st.integers(1, 9))
def test_the_borders_of_batches_do_not_show_in_the_chunks(
    parts: list[list[bool]], batches: list[int], fixed: int
) -> None:
    in_batches = [rows_of(chunk) for chunk in cut(parts, batches, fixed)]
    assert in_batches == [rows_of(chunk) for chunk in cut(parts, [], fixed)]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3000), max_size=6), st.lists(st.integers(1, 3), max_size=5))
def test_growing_chunks_have_their_sizes(lengths: list[int], batches: list[int]) -> None:
    parts = [[True] * length for length in lengths]
    chunks = cut(parts, batches, None)
    assert sum(chunk.num_rows for chunk in chunks) == sum(lengths)
    assert all(chunk.num_rows == rows_in_chunk(chunk.number, None) for chunk in chunks[:-1])


@given(
    flags=st.lists(st.booleans(), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
)
def test_divided_rows_are_all_there_once(flags: list[bool], cuts: list[int]) -> None:
    edges = sorted({0, len(flags), *(cut for cut in cuts if cut < len(flags))})
    slices = [
        Slice("part", start + 5, stop + 5, 100)
        for start, stop in itertools.pairwise(edges)
        if stop > start
    ]
    picked, others = divide(slices, np.array(flags, dtype=bool))

    def rows(found: list[Slice]) -> list[int]:
        return [row for one in found for row in range(one.start, one.stop)]

    assert rows(picked) == [index + 5 for index, flag in enumerate(flags) if flag]
    assert rows(others) == [index + 5 for index, flag in enumerate(flags) if not flag]
