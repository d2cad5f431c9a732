"""Whatever the rows and whoever groups them, each row is in one chunk, and groups are whole."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright.core.records import Slice
from batchwright.order import Sequencer
from batchwright.plan.blend import Units, blend, gather_units
from batchwright.plan.chunks import SLACK, cut_chunks, plan_chunks, rows_in_chunk
from batchwright.rundir.prepared import row_numbers
from tests.unit.rundir.small_runs import SmallRun, small_run

PROMPTS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 300), st.booleans()), min_size=1, max_size=60
)


def begin(folder: Path, prompts: list[tuple[int, int, bool]], order: str) -> SmallRun:
    """Rows of five families; a family shares what it begins with. Some rows are no rows."""
    rows = [
        {"id": f"{number}", "prompt": f"{family}" * 40 + "y" * length} if good else "{bad"
        for number, (family, length, good) in enumerate(prompts)
    ]
    rows.append({"id": "last", "prompt": "x"})
    return small_run(folder, rows, split_bytes=4000, run__order=order, run__chunk_rows=3)


@settings(max_examples=25, deadline=None)
@given(PROMPTS, st.sampled_from(["prefix", "length"]), st.lists(st.integers(1, 4), max_size=8))
def test_every_row_is_in_one_chunk_whoever_groups(
    prompts: list[tuple[int, int, bool]], order: str, steps: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name:
        patch.setattr("batchwright.prepare.ROWS_PER_BATCH", 4)
        patch.setattr("batchwright.prepare.ROWS_PER_PART", 8)
        patch.setattr("batchwright.rundir.regroup.BUFFER_BYTES", 500)
        patch.setattr("batchwright.rundir.regroup.PART_BYTES", 2000)
        run = begin(Path(name), prompts, order)
        run.prepare()
        for count in steps:  # each dies after a few steps, and another takes its place
            sequencer = Sequencer(run.storage, run.manifest)
            for _ in range(count):
                sequencer.advance()
        assert run.order().finished
        slices = [piece for chunk in run.state().chunks for piece in chunk.slices]
        good = [number for number, (_, _, valid) in enumerate(prompts) if valid]
        numbers = row_numbers(run.storage, slices).tolist()
        assert sorted(numbers) == [*good, len(prompts)]
        counts = run.state().counts()
        assert (counts.ordered, counts.rows) == (True, len(prompts) + 1)
        assert counts.rejected == len(prompts) - len(good)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 900), max_size=40),
    st.integers(0, 40),
    st.none() | st.integers(1, 300),
    st.integers(1, 8),
)
def test_planned_chunks_hold_every_row_and_keep_to_their_size(
    units: list[int], first: int, fixed: int | None, replicas: int
) -> None:
    sizes = plan_chunks(units, first, fixed, replicas)
    assert sum(sizes) == sum(units)
    assert all(size > 0 for size in sizes)
    for number, size in enumerate(sizes):
        largest = rows_in_chunk(first + number, fixed)
        assert size <= largest * (1 if fixed else 1 + SLACK)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 3000), max_size=8), st.lists(st.integers(1, 3), max_size=5),
    st.integers(1, 6),
)  # fmt: skip
def test_the_tail_does_not_depend_on_the_borders_of_batches(
    lengths: list[int], batches: list[int], replicas: int
) -> None:
    def cut(sizes: list[int]) -> list[int]:
        found: list[int] = []
        waiting: list[Slice] = []
        index = 0
        sizes = list(sizes)
        while index < len(lengths):
            size = sizes.pop(0) if sizes else len(lengths)
            waiting += [
                Slice(f"p{number}", 0, lengths[number], 0)
                for number in range(index, min(index + size, len(lengths)))
                if lengths[number]
            ]
            index += size
            fresh, waiting = cut_chunks(
                waiting, len(found), None, last=index >= len(lengths), replicas=replicas
            )
            found += [chunk.num_rows for chunk in fresh]
        return found

    assert cut(batches) == cut([])
    assert sum(cut(batches)) == sum(lengths)


UNITS = st.lists(
    st.tuples(st.integers(1, 200), st.integers(1, 5000), st.integers(1, 900), st.integers(1, 99)),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(UNITS, st.integers(0, 99))
def test_blending_loses_and_repeats_nothing(
    raw: list[tuple[int, int, int, int]], long_cap: int
) -> None:
    columns = zip(*raw, strict=True) if raw else ([], [], [], [])
    units = Units(*(np.asarray(list(one), dtype=np.int64) for one in columns))
    assert sorted(blend(units, long_cap).tolist()) == list(range(len(raw)))
    joined = gather_units(units)
    for name in ("rows", "prefill", "decode"):
        assert getattr(joined, name).sum() == getattr(units, name).sum()
