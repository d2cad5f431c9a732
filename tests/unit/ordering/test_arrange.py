from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from batchwright.core.records import Chunk, OrderBatch, Slice
from batchwright.ordering.arrange import SCRATCH, Arrangement, remove_leftovers
from batchwright.plan.gate import Known
from batchwright.rundir import layout
from batchwright.rundir.manifest import block_size
from batchwright.rundir.prepared import row_numbers
from tests.unit.rundir.small_runs import SmallRun, small_run

DOCUMENTS = 12
QUESTIONS = 10
BLOCK = 16


def shuffled_documents(seed: int = 1) -> list[dict[str, Any]]:
    """Rows that share 160 bytes with nine others, in no order."""
    rng = random.Random(seed)
    texts = ["".join(rng.choices("abcdefgh", k=160)) for _ in range(DOCUMENTS)]
    rows = [
        {"id": f"{document}-{question}", "prompt": f"{texts[document]} {question:02} and {rng.random()}"}
        for document in range(DOCUMENTS)
        for question in range(QUESTIONS)
    ]  # fmt: skip
    rng.shuffle(rows)
    return rows


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    run = small_run(tmp_path, shuffled_documents(), sampling__max_tokens=8, run__chunk_rows=30)
    run.prepare()
    return run


def waiting(run: SmallRun) -> list[Slice]:
    return [Slice(layout.prepared_part(0, 0), 0, DOCUMENTS * QUESTIONS, 0)]


def looked(run: SmallRun, by: str = "prefix") -> Arrangement:
    found = Arrangement(run.storage, run.manifest, waiting(run), by)
    for _ in found.look():
        pass
    return found


def grouped_rows(run: SmallRun, found: Arrangement, rows: list[Slice]) -> list[int]:
    for _ in found.group(rows, 0):
        pass
    numbers: list[int] = row_numbers(run.storage, found.slices).tolist()
    return numbers


def documents_of(rows: list[int]) -> list[str]:
    ids = [str(row["id"]) for row in shuffled_documents()]
    return [ids[row].split("-")[0] for row in rows]


def changes(names: list[str]) -> int:
    return sum(a != b for a, b in itertools.pairwise(names))


def test_rows_of_a_document_stand_together(run: SmallRun) -> None:
    found = looked(run)
    rows = grouped_rows(run, found, waiting(run))
    assert sorted(rows) == list(range(DOCUMENTS * QUESTIONS))
    assert changes(documents_of(list(range(120)))) > 100
    assert changes(documents_of(rows)) == DOCUMENTS - 1
    assert [one.stop - one.start for one in found.slices] == [30] * 4


def test_rows_that_went_into_chunks_meanwhile_are_left_out(run: SmallRun) -> None:
    found = looked(run)
    rest = [Slice(layout.prepared_part(0, 0), 50, 120, 0)]
    rows = grouped_rows(run, found, rest)
    assert sorted(rows) == list(range(50, 120))
    assert changes(documents_of(rows)) == len(set(documents_of(rows))) - 1


def test_rows_that_are_alike_stay_in_their_order(tmp_path: Path) -> None:
    run = small_run(tmp_path, [{"prompt": "the same prompt again " * 9}] * 120)
    run.prepare()
    assert grouped_rows(run, looked(run), waiting(run)) == list(range(120))


def test_order_by_length_puts_long_prompts_first(tmp_path: Path) -> None:
    rng = random.Random(2)
    rows = [{"prompt": "x" * rng.randint(1, 900)} for _ in range(120)]
    run = small_run(tmp_path, rows)
    run.prepare()
    numbers = grouped_rows(run, looked(run, "length"), waiting(run))
    lengths = [len(rows[row]["prompt"]) for row in numbers]
    assert sorted(numbers) == list(range(120))
    assert all(b <= 1.11 * a + 1 for a, b in itertools.pairwise(lengths))


def by_caps(tmp_path: Path, replicas: int) -> list[int]:
    """The caps of 120 rows in the order in which they run: engines hold 24 rows each."""
    caps = [2 + 40 * row for row in range(120)]
    rows = [{"prompt": f"row {cap}", "max_tokens": cap} for cap in caps]
    settings = {"run__replicas": replicas, "run__chunk_rows": 30}
    run = small_run(tmp_path, rows, engine__options={"max_num_seqs": 8}, **settings)
    run.prepare()
    numbers = grouped_rows(run, looked(run, "longest"), waiting(run))
    assert sorted(numbers) == list(range(120))
    return [caps[row] for row in numbers]


def test_rows_with_the_largest_caps_come_first(tmp_path: Path) -> None:
    ordered = by_caps(tmp_path, replicas=1)
    assert all(b < 1.42 * a for a, b in itertools.pairwise(ordered[24:]))
    assert min(ordered[:24]) * 1.42 > max(ordered[24:])
    assert ordered != sorted(ordered, reverse=True), "an engine would get the longest of all"


def test_engines_that_come_up_one_after_another_get_rows_of_the_same_lengths(
    tmp_path: Path,
) -> None:
    ordered = by_caps(tmp_path, replicas=3)
    shares = [ordered[0:24], ordered[24:48], ordered[48:72]]
    means = [sum(share) / len(share) for share in shares]
    assert max(means) < 1.15 * min(means), "the first would have 1.9 times as much as the last"
    assert min(ordered[:72]) * 1.42 > max(ordered[72:])


def test_a_small_cache_makes_groups_worth_it_and_a_large_one_does_not(run: SmallRun) -> None:
    found = looked(run)
    small = found.decide("auto", Known(kv_tokens=600, mean_output=8.0))
    assert small.order == "prefix"
    assert small.hit_rate_file < 0.3 < 0.6 < small.hit_rate_best
    assert small.rows == 120
    assert small.cache_tokens is not None
    assert small.cache_tokens < 600
    large = found.decide("auto", Known(kv_tokens=10**6, mean_output=8.0))
    assert (large.order, large.gain) == ("file", 0.0)


def test_without_the_size_of_the_cache_rows_run_in_file_order(run: SmallRun) -> None:
    decision = looked(run).decide("auto", Known(None))
    assert decision.order == "file"
    assert "not known" in decision.reason


@pytest.mark.parametrize("asked", ["prefix", "length", "longest"])
def test_what_the_job_file_asks_for_is_done(run: SmallRun, asked: str) -> None:
    assert looked(run).decide(asked, Known(10**6)).order == asked


def test_before_the_first_answer_the_cap_stands_for_it(run: SmallRun) -> None:
    assert looked(run).decide("auto", Known(1000)).output_tokens == 8 * 120
    assert looked(run).decide("auto", Known(1000, mean_output=2.5)).output_tokens == 300


def test_only_what_the_order_does_not_name_is_removed(run: SmallRun) -> None:
    for number in range(3):
        run.storage.put(layout.grouped_part(number, "x"), b"")
    (run.storage.root / layout.PREPARED / f"{SCRATCH}old").mkdir()
    chunk = Chunk(0, 0, (Slice(layout.grouped_part(0, "x"), 0, 1, -1),))
    waits = Slice(layout.grouped_part(1, "x"), 0, 1, -1)
    remove_leftovers(run.storage, [OrderBatch(0, 0, (), (chunk,), (waits,), (), 0, last=False)])
    left = {path.name for path in (run.storage.root / layout.PREPARED).iterdir()}
    assert left == {
        "grouped-000000-x.arrow", "grouped-000001-x.arrow", "part-000000-0000.arrow",
        "part-000000-0000.json",
    }  # fmt: skip


def test_blocks_are_those_of_the_engine(run: SmallRun) -> None:
    assert block_size(run.manifest) == 16
    run.manifest.job["engine"]["options"]["block_size"] = 128
    assert block_size(run.manifest) == 128
