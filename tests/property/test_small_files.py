"""Small files that share splits make the run that they make apart."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright.read.neighbours import share_splits
from batchwright.results.fates import Fates
from batchwright.rundir.prepared import read_columns
from tests.property.test_sequencing import FILES, begin, interleave
from tests.unit.rundir.small_runs import SmallRun


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(0, 80), st.integers(1, 9))
def test_every_file_is_in_one_split_and_no_split_is_too_large(
    weights: list[int], most: int, most_files: int
) -> None:
    runs = list(share_splits(weights, most, most_files))
    assert [place for run in runs for place in run] == list(range(len(weights)))
    for run in runs:
        assert len(run) == 1 or sum(weights[place] for place in run) <= most
        assert 1 <= len(run) <= most_files
    for run, after in itertools.pairwise(runs):
        with_next = sum(weights[place] for place in run) + weights[after[0]]
        assert with_next > most or len(run) == most_files


@settings(max_examples=20, deadline=None)
@given(FILES, st.integers(0, 9), st.booleans(), st.none() | st.integers(1, 20), st.integers(0, 500))
def test_a_run_is_the_same_whichever_files_share_a_split(
    files: list[list[Any]], empty: int, ready_first: bool, limit: int | None, shared_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name:
        patch.setattr("batchwright.prepare.ROWS_PER_BATCH", 2)
        patch.setattr("batchwright.prepare.ROWS_PER_PART", 3)
        (Path(name) / "data").mkdir()
        (Path(name) / "data" / f"{empty}-blank.jsonl").write_text("\n\n")
        apart = begin(Path(name), files, "apart", limit)
        shared = begin(Path(name), files, "shared", limit, shared_bytes)
        assert len(shared.manifest.splits) <= len(apart.manifest.splits)
        interleave(apart, [], ready_first=True)
        interleave(shared, [], ready_first=ready_first)
        assert content(shared) == content(apart)


def content(run: SmallRun) -> tuple[Any, ...]:
    """All that a run says of its input."""
    state = run.state()
    parts = [part for batch in state.batches for part in batch.parts]
    tables = [
        read_columns(run.storage, part.file, ["id", "token_ids", "error_code", "input"])
        .slice(0, part.rows)
        .cast(pa.schema([("id", pa.string()), ("token_ids", pa.list_(pa.int32())),
                         ("error_code", pa.string()), ("input", pa.string())]))
        for part in parts
    ]  # fmt: skip
    rows = pa.concat_tables(tables).to_pylist()
    places = Fates(run.storage, run.manifest).places(range(len(rows)))
    return rows, places, run.chunk_rows(), run.rejected(), state.counts()
