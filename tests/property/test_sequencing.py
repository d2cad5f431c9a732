"""Any interleaving of two sequencers and of preparing gives the rows the same order."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright.order import Sequencer
from tests.unit.rundir.small_runs import SmallRun, order_files, small_run

ROWS = st.lists(
    st.one_of(
        st.integers(0, 9).map(lambda number: {"id": str(number), "prompt": "x"}),
        st.just("{bad"),
        st.just(""),
        st.just({"id": "none"}),
    ),
    max_size=6,
)
FILES = st.lists(ROWS, min_size=1, max_size=3)


def begin(
    folder: Path, files: list[list[Any]], run_dir: str, limit: int | None, shared_bytes: int = 0
) -> SmallRun:
    named = {f"{number}.jsonl": [{"id": f"first{number}", "prompt": "x"}, *rows]
             for number, rows in enumerate(files)}  # fmt: skip
    data = folder / "data"
    return small_run(
        folder, data if (data / "0.jsonl").exists() else named, split_bytes=70, shared_bytes=shared_bytes,
        run_dir=run_dir, run__chunk_rows=3, input__limit=limit,
    )  # fmt: skip


# What happens next: bit 0 which sequencer, bit 1 whether a split is prepared first, bit 2 whether
# the sequencer dies afterwards and another takes its place; the rest picks the split.
MOVES = st.lists(st.integers(0, 63), max_size=12)


@settings(max_examples=20, deadline=None)
@given(FILES, MOVES, st.booleans(), st.none() | st.integers(1, 20))
def test_who_orders_and_when_does_not_matter(
    files: list[list[Any]], moves: list[int], ready_first: bool, limit: int | None
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name:
        patch.setattr("batchwright.prepare.ROWS_PER_BATCH", 2)
        patch.setattr("batchwright.prepare.ROWS_PER_PART", 2)
        patch.setattr("batchwright.order.PARTS_PER_BATCH", 2)
        alone = begin(Path(name), files, "alone", limit)
        alone.prepare()
        assert alone.order().finished

        shared = begin(Path(name), files, "shared", limit)
        interleave(shared, moves, ready_first=ready_first)
        assert shared.state().ordered
        assert shared.chunk_rows() == alone.chunk_rows()
        assert shared.rejected() == alone.rejected()
        assert shared.state().counts() == alone.state().counts()
        if ready_first:
            assert order_files(shared) == order_files(alone)


def interleave(run: SmallRun, moves: list[int], *, ready_first: bool) -> None:
    """Two sequencers put the run in order while its splits are prepared one by one."""
    todo = list(range(len(run.manifest.splits)))
    if ready_first:
        run.prepare()
        todo = []
    both = [Sequencer(run.storage, run.manifest) for _ in range(2)]
    for move in moves:
        if todo and move & 2:
            run.prepare([todo.pop((move >> 3) % len(todo))])
        both[move & 1].advance()
        if move & 4:
            both[move & 1] = Sequencer(run.storage, run.manifest)
    run.prepare(todo)
    for sequencer in both:
        while sequencer.advance():
            pass
        assert sequencer.finished
