"""Rows that share a document are drawn together and run side by side."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchwright.core.records import Slice
from batchwright.ordering import pilot_rows
from batchwright.ordering.pilot_rows import (
    ENGINE_WAITS_S,
    LARGEST_GROUP,
    LEAST_POOL,
    MOST_POOL_TOKENS,
    choose_pilot,
    find_groups,
    pool_is_enough,
)
from batchwright.rundir import layout
from batchwright.rundir.prepared import read_slices, row_numbers
from tests.unit.rundir.small_runs import SmallRun, small_run

BLOCK = 16
DOCUMENTS, QUESTIONS = 400, 8
ROWS = DOCUMENTS * QUESTIONS


def shuffled_documents() -> list[dict[str, Any]]:
    rng = random.Random(1)
    texts = ["".join(rng.choices("abcdefgh", k=160)) for _ in range(DOCUMENTS)]
    rows = [
        {
            "id": f"{document}-{question}",
            "prompt": f"all say this. {texts[document]} {rng.random()}",
        }
        for document in range(DOCUMENTS)
        for question in range(QUESTIONS)
    ]
    rng.shuffle(rows)
    return rows


def prepared(tmp_path: Path, rows: list[dict[str, Any]], order: str = "auto") -> SmallRun:
    run = small_run(tmp_path, rows, run__order=order)
    run.prepare()
    run.manifest = replace(run.manifest, pilot_rows=1_000)
    return run


def everything(rows: int) -> list[Slice]:
    return [Slice(layout.prepared_part(0, 0), 0, rows, 0)]


def documents_of(run: SmallRun) -> list[str]:
    """The document of each of the pilot's rows, in the order in which they run."""
    ids = [str(row["id"]) for row in shuffled_documents()]
    chunks, others = choose_pilot(run.storage, run.manifest, everything(ROWS))
    rows = [row for chunk in chunks for row in row_numbers(run.storage, chunk.slices).tolist()]
    left = row_numbers(run.storage, others).tolist()
    assert len(rows) == 1_000
    assert sorted([*rows, *left]) == list(range(ROWS))
    assert left == sorted(left)
    return [ids[row].split("-")[0] for row in rows]


def changes(names: list[str]) -> int:
    return sum(a != b for a, b in itertools.pairwise(names))


def test_rows_of_a_document_are_drawn_together_and_run_side_by_side(tmp_path: Path) -> None:
    documents = documents_of(prepared(tmp_path, shuffled_documents()))
    counts = [documents.count(name) for name in set(documents)]
    assert changes(documents) == len(counts) - 1
    assert counts.count(QUESTIONS) > 100
    assert max(counts) == QUESTIONS


@pytest.mark.parametrize("order", ["file", "length", "longest"])
def test_where_they_will_not_run_together_they_are_drawn_one_by_one(
    tmp_path: Path, order: str
) -> None:
    documents = documents_of(prepared(tmp_path, shuffled_documents(), order))
    assert changes(documents) > 950


def test_for_an_endpoint_they_are_drawn_one_by_one(tmp_path: Path) -> None:
    run = prepared(tmp_path, shuffled_documents())
    run.manifest.job["engine"]["kind"] = "openai"
    assert changes(documents_of(run)) > 950


def test_what_all_rows_say_makes_no_group(tmp_path: Path) -> None:
    rows = [{"prompt": "the same instructions for all of them " * 4 + str(n)} for n in range(60)]
    run = prepared(tmp_path, rows)
    assert find_groups(run.storage, everything(60), BLOCK) is None


def test_a_large_group_is_drawn_in_parts(tmp_path: Path) -> None:
    texts = ["".join(random.Random(n).choices("abcdefgh", k=300)) for n in range(3)]
    rows = [{"prompt": f"{text} {n}"} for text in texts for n in range(2 * LARGEST_GROUP + 3)]
    run = prepared(tmp_path, rows)
    groups = find_groups(run.storage, everything(len(rows)), BLOCK)
    assert groups is not None
    sizes = sorted(groups.tolist().count(one) for one in set(groups.tolist()))
    assert sizes == [3] * 3 + [LARGEST_GROUP] * 6


def test_rows_are_read_in_the_order_of_the_slices(tmp_path: Path) -> None:
    run = prepared(tmp_path, shuffled_documents())
    part = layout.prepared_part(0, 0)
    wanted = [700, 3, 4, 5, 90, 2]
    slices = [
        Slice(part, 700, 701, 0),
        Slice(part, 3, 6, 0),
        *(Slice(part, n, n + 1, 0) for n in (90, 2)),
    ]
    table, numbers = read_slices(run.storage, slices)
    assert numbers.tolist() == wanted
    ids = [str(row["id"]) for row in shuffled_documents()]
    assert table.column("id").to_pylist() == [ids[n] for n in wanted]


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows_are_no_trouble(tmp_path: Path, rows: int) -> None:
    run = prepared(tmp_path, [{"prompt": "one"}])
    assert find_groups(run.storage, everything(1)[:rows], BLOCK) is None


def test_keys_that_take_too_much_memory_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = prepared(tmp_path, shuffled_documents())
    assert find_groups(run.storage, everything(ROWS), BLOCK) is not None
    monkeypatch.setattr(pilot_rows, "MOST_KEY_BYTES", 1_000)
    assert find_groups(run.storage, everything(ROWS), BLOCK) is None
    assert changes(documents_of(run)) > 950


@pytest.mark.parametrize(
    ("engine_up_s", "rows", "tokens", "enough"),
    [
        (None, 99_999, MOST_POOL_TOKENS - 1, False),
        (None, 100_000, 0, True),
        (None, 3_000, MOST_POOL_TOKENS, True),
        (0.0, 1_000 * LEAST_POOL - 1, 0, False),
        (0.0, 1_000 * LEAST_POOL, 0, True),
        (ENGINE_WAITS_S, 999, 0, False),
        (ENGINE_WAITS_S, 1_000, 0, True),
    ],
)
def test_when_a_pilot_is_chosen(
    tmp_path: Path, engine_up_s: float | None, rows: int, tokens: int, enough: bool
) -> None:
    manifest = small_run(tmp_path, [{"prompt": "one"}]).manifest
    pilot = replace(manifest, pilot_rows=1_000, pilot_pool=100_000)
    assert pool_is_enough(pilot, engine_up_s, rows, tokens) is enough
    of_all = replace(pilot, pilot_pool=0)
    assert not pool_is_enough(of_all, engine_up_s, rows, tokens), "a budget depends on all rows"
