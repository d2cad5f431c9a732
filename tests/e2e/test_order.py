"""Runs in another order, killed while grouping: the results are those of file order."""

from __future__ import annotations

import json
import random
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from batchwright.core.records import GROUPED
from batchwright.rundir import layout
from batchwright.rundir.prepared import read_slices
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage
from tests.e2e.command import call, kill_all, result_bytes, start

DOCUMENTS, QUESTIONS = 200, 20
ROWS = DOCUMENTS * QUESTIONS
BLOCK = 16
CACHE_TOKENS = 8_000


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty questions on each of 200 texts of 240 bytes, shuffled; some lines are no rows."""
    rng = random.Random(11)
    texts = ["".join(rng.choices("abcdefgh ", k=240)) for _ in range(DOCUMENTS)]
    lines = [
        json.dumps({"id": f"{text}-{number}", "prompt": f"{texts[text]} {number} {rng.random()}?"})
        for text in range(DOCUMENTS)
        for number in range(QUESTIONS)
    ]
    rng.shuffle(lines)
    lines[100], lines[3000] = "{bad", lines[7]
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def options(rows: Path, order: str, step_s: float = 0.01) -> list[str]:
    return [
        "run", str(rows), "--engine", "fake", "--model", "", "--max-tokens", "12",
        "--set", f"run.order={order}", "--set", "run.pilot_rows=0", "--set", "run.max_failed=1",
        "--set", "run.chunk_rows=250", "--set", "run.lease_s=5",
        "--set", f"engine.options.seconds_per_step={step_s}",
        "--set", f"engine.options.kv_tokens={CACHE_TOKENS}",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def in_file_order(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("file") / "run"
    call(*options(rows, "file"), "--dir", run_dir)
    return run_dir


def prompts(run_dir: Path) -> Iterator[Sequence[int]]:
    storage = Storage(run_dir)
    state = RunState(storage)
    state.refresh_order()
    for chunk in state.chunks:
        table, _ = read_slices(storage, chunk.slices)
        yield from table.column("token_ids").to_pylist()


def hit_rate(run_dir: Path) -> float:
    """Share of prompt tokens found in an LRU cache of whole blocks, written here once more."""
    cache: OrderedDict[tuple[int, ...], None] = OrderedDict()
    hits = tokens = 0
    for ids in prompts(run_dir):
        tokens += len(ids)
        blocks = [tuple(ids[:end]) for end in range(BLOCK, len(ids) + 1, BLOCK)]
        for block in blocks:
            if block not in cache or len(block) >= len(ids):
                break
            hits += BLOCK
        for block in reversed(blocks):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > CACHE_TOKENS // BLOCK:
            cache.popitem(last=False)
    return hits / tokens


def grouped_chunks(run_dir: Path) -> int:
    state = RunState(Storage(run_dir))
    state.refresh_order()
    return sum(chunk.slices[0].first_row == GROUPED for chunk in state.chunks)


def test_rows_that_share_run_together_and_results_are_the_same(
    rows: Path, in_file_order: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    summary = call(*options(rows, "prefix"), "--dir", run_dir)
    assert summary["rows_in"] == ROWS
    assert call("verify", run_dir)["passed"]
    assert result_bytes(run_dir) == result_bytes(in_file_order)
    assert grouped_chunks(run_dir) > 0
    assert hit_rate(in_file_order) < 0.25
    assert hit_rate(run_dir) > 0.6


@pytest.mark.parametrize("order", ["auto", "length", "longest"])
def test_every_order_gives_the_same_results(
    rows: Path, in_file_order: Path, tmp_path: Path, order: str
) -> None:
    run_dir = tmp_path / "run"
    call(*options(rows, order), "--dir", run_dir)
    assert call("verify", run_dir)["passed"]
    assert result_bytes(run_dir) == result_bytes(in_file_order)


def wait_for(run_dir: Path, pattern: str) -> None:
    until = time.monotonic() + 60
    while not list(run_dir.glob(pattern)):
        assert time.monotonic() < until, f"no {pattern} in {run_dir}"
        time.sleep(0.002)


@pytest.mark.parametrize(
    "moment", [f"{layout.PREPARED}/.grouping-*/sorted", f"{layout.PREPARED}/grouped-*.arrow"]
)
def test_killed_while_grouping(
    rows: Path, in_file_order: Path, tmp_path: Path, moment: str
) -> None:
    run_dir = tmp_path / "run"
    process = start(*options(rows, "prefix", 0.05), "--dir", run_dir)
    wait_for(run_dir, moment)
    kill_all(process)
    # An engine that takes no time at all may have answered everything before groups are made.
    call(*options(rows, "prefix", 0.03), "--dir", run_dir)
    proof = call("verify", run_dir)
    assert proof["passed"]
    assert (proof["missing"], proof["duplicates"], proof["rows_in"]) == (0, 0, ROWS)
    assert result_bytes(run_dir) == result_bytes(in_file_order)
    assert grouped_chunks(run_dir) > 0
    assert not list((run_dir / layout.PREPARED).glob(".grouping-*"))


def test_failed_rows_of_groups_run_again(rows: Path, in_file_order: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    failing = [*options(rows, "prefix"), "--set", "engine.options.abort_rows=[3, 2000, 3900]"]
    first = call(*failing, "--dir", run_dir, "--set", "run.max_failed=1")
    assert first["failed"] == 3
    call(*options(rows, "prefix"), "--dir", run_dir)  # the faults are mended in the job
    assert call("retry", run_dir)["failed"] == 0
    assert call("verify", run_dir)["passed"]
    again, before = (sorted(answers(folder)) for folder in (run_dir, in_file_order))
    assert again == before


def answers(run_dir: Path) -> list[tuple[int, str, str]]:
    import pyarrow.parquet as pq

    table = pq.read_table(run_dir / "results", columns=["row", "status", "text"])
    return [(one["row"], one["status"], one["text"] or "") for one in table.to_pylist()]
