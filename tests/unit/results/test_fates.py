"""Rows of a run by fate: as a person asks for them, from as few parts as may be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import batchwright
from batchwright.cli.app import app
from batchwright.cli.rows import group_lines, row_lines
from batchwright.core.failures import FailureGroup
from batchwright.core.records import Receipt
from batchwright.ordering.retry import order_failed_rows
from batchwright.results.fates import STATUSES, WITHOUT_ANSWER, Fates, Place, Wanted, failure_groups
from tests.unit.rundir.small_runs import SmallRun, prompts, small_run
from tests.unit.test_worker import work

# Rows 0 to 8, of which 4 is no JSON and 6 has the id of row 1; two files.
FILES = {
    "a.jsonl": [*prompts(4), "{bad"],
    "b.jsonl": [*prompts(1, 5), {"id": "r1", "prompt": "again"}, "", *prompts(2, 7)],
}
REFUSED = [2, 8]


def finished_run(folder: Path) -> SmallRun:
    run = small_run(folder, FILES, run__chunk_rows=2)
    run.prepare()
    run.order()
    work(run, refuse_rows=REFUSED)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    return finished_run(tmp_path_factory.mktemp("fates"))


def fates(run: SmallRun) -> Fates:
    return Fates(run.storage, run.manifest)


def numbers(run: SmallRun, *statuses: str, codes: tuple[str, ...] = ()) -> list[int]:
    tables = fates(run).tables(Wanted(frozenset(statuses), frozenset(codes)))
    return sorted(row for table in tables for row in table.column("row").to_pylist())


def test_rows_by_status_and_code(run: SmallRun) -> None:
    assert numbers(run, "failed") == [2, 8]
    assert numbers(run, "rejected") == [4, 6]
    assert numbers(run, "ok") == [0, 1, 3, 5, 7]
    assert numbers(run, "failed", "rejected", codes=("bad_json", "engine_refused")) == [2, 4, 8]
    assert numbers(run, "invalid") == []
    assert sorted({*numbers(run, "ok", "truncated")}) == [0, 1, 3, 5, 7]


def test_only_parts_that_may_have_such_rows_are_read(run: SmallRun) -> None:
    every = run.state().receipts.values()
    with_failures = [one.file for one in every if one.failed]
    assert len(with_failures) < len(every)
    chosen = fates(run).committed(Wanted(frozenset({"failed"})))
    assert sorted(part.file for part in chosen.parts) == sorted(with_failures)
    assert list(chosen.rejected) == []
    assert fates(run).committed(Wanted(frozenset({"failed"}), frozenset({"timeout"}))).parts == []


def test_a_receipt_that_tells_no_codes_may_have_any() -> None:
    receipt = Receipt(0, 0, "f", "", 5, 3, 2, 1, 0, 0, 0, 4, "w", 1.0)
    for status in ("failed", "ok", "truncated", "invalid"):
        assert Wanted(frozenset({status}), frozenset({"timeout"})).may_be_in(receipt)
    told = replace(receipt, failures={"aborted": 2}, truncated=0)
    assert not Wanted(frozenset({"failed"}), frozenset({"timeout"})).may_be_in(told)
    assert not Wanted(frozenset({"truncated", "invalid"})).may_be_in(told)


def test_rows_know_where_they_stand_in_the_input(run: SmallRun) -> None:
    places = fates(run).places([0, 2, 4, 5, 8])
    shown = {row: (Path(place.path).name, place.line) for row, place in places.items()}
    assert shown == {
        0: ("a.jsonl", 1), 2: ("a.jsonl", 3), 4: ("a.jsonl", 5), 5: ("b.jsonl", 1),
        8: ("b.jsonl", 5),
    }  # fmt: skip


def test_why_rows_failed(run: SmallRun) -> None:
    groups = failure_groups(run.storage)
    assert [(one.status, one.code, one.count, one.rows) for one in groups] == [
        ("failed", "engine_refused", 2, (2, 8)),
        ("rejected", "bad_json", 1, (4,)),
        ("rejected", "duplicate_id", 1, (6,)),
    ]
    assert all(one.exact and one.remedy for one in groups)
    only = failure_groups(
        run.storage, wanted=Wanted(WITHOUT_ANSWER.statuses, frozenset({"bad_json"}))
    )
    assert [one.code for one in only] == ["bad_json"]


def test_of_a_large_run_a_part_stands_for_all(tmp_path: Path) -> None:
    rows = [one for n in range(12) for one in (*prompts(1, n), "{bad")]
    run = small_run(tmp_path, {f"{n:02}.jsonl": rows[2 * n : 2 * n + 2] for n in range(12)},
                    run__chunk_rows=1)  # fmt: skip
    run.prepare()
    run.order()
    work(run, refuse_rows=list(range(24)))
    groups = failure_groups(run.storage, parts_at_most=4)
    assert {(one.code, one.count, one.exact) for one in groups} == {
        ("engine_refused", 12, False), ("bad_json", 12, False),
    }  # fmt: skip


def test_a_row_that_was_run_again_has_its_newest_fate_only(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    assert order_failed_rows(run.storage, run.state(), None, ()) == 2
    work(run, name="again", refuse_rows=[8])
    assert numbers(run, "failed") == [8]
    assert numbers(run, "ok") == [0, 1, 2, 3, 5, 7]
    assert [one.rows for one in failure_groups(run.storage) if one.status == "failed"] == [(8,)]
    assert batchwright.open(run.storage.root).failed().to_arrow().column("row").to_pylist() == [
        4,
        6,
        8,
    ]


def test_an_unfinished_run_shows_what_it_has(tmp_path: Path) -> None:
    run = small_run(tmp_path, FILES, run__chunk_rows=2)
    run.prepare()
    run.order()
    assert numbers(run, *STATUSES) == [4, 6]
    assert [one.code for one in failure_groups(run.storage)] == ["bad_json", "duplicate_id"]


def call(*arguments: object, exit_code: int = 0) -> str:
    result = CliRunner().invoke(app, ["rows", *map(str, arguments)])
    assert result.exit_code == exit_code, result.output
    return result.stdout if exit_code == 0 else result.stderr


def test_the_command_tells_why_and_shows_rows(run: SmallRun) -> None:
    shown = call(run.storage.root)
    assert "9 rows: 5 ok, 2 failed, 2 rejected" in shown
    assert "failed engine_refused: 2 rows (2, 8)" in shown
    assert "a.jsonl:5  rejected bad_json" in shown
    assert "row 8 (r8)" in shown
    assert "-o rows.jsonl" in shown
    assert "row 4" not in call(run.storage.root, "--limit", 2)
    assert "no such rows" in call(run.storage.root, "--status", "invalid")


def test_the_command_writes_files_of_three_formats(run: SmallRun, tmp_path: Path) -> None:
    for ending in ("jsonl", "parquet", "csv"):
        call(run.storage.root, "-o", tmp_path / f"bad.{ending}")
    lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines] == [2, 4, 6, 8]
    assert lines[0]["input_id"] == "r2"
    assert pq.read_table(tmp_path / "bad.parquet").column("error_code").to_pylist() == [
        "engine_refused", "bad_json", "duplicate_id", "engine_refused",
    ]  # fmt: skip
    assert pacsv.read_csv(tmp_path / "bad.csv").column("row").to_pylist() == [2, 4, 6, 8]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bad.csv",
        "bad.jsonl",
        "bad.parquet",
    ]


def test_columns_limit_and_json_lines(run: SmallRun, tmp_path: Path) -> None:
    call(
        run.storage.root,
        "--status",
        "ok",
        "--limit",
        2,
        "--columns",
        "prompt",
        "-o",
        tmp_path / "o.jsonl",
    )
    (first, second) = (tmp_path / "o.jsonl").read_text().splitlines()
    assert json.loads(first)["prompt"] == "prompt 0"
    assert "input_id" not in json.loads(second)
    lines = call(run.storage.root, "--code", "duplicate_id", "--json").splitlines()
    (only,) = map(json.loads, lines)
    assert (only["row"], only["source_line"]) == (6, 2)
    assert only["source_file"].endswith("b.jsonl")
    assert call(run.storage.root, "--limit", 0, "--json") == ""


def test_mistakes_are_named(run: SmallRun, tmp_path: Path) -> None:
    assert "there are ok, failed" in call(run.storage.root, "--status", "bad", exit_code=2)
    assert "engine_refused" in call(run.storage.root, "--code", "refused", exit_code=2)
    assert ".parquet" in call(run.storage.root, "-o", tmp_path / "x.xlsx", exit_code=2)
    assert "no row has 'nope'" in call(
        run.storage.root, "--columns", "nope", "-o", tmp_path / "x.csv", exit_code=2
    )
    assert list(tmp_path.iterdir()) == []
    assert "cannot write" in call(run.storage.root, "-o", "/proc/none/x.csv", exit_code=75)


def test_a_row_is_shown_on_few_short_lines() -> None:
    row = {"row": 3, "id": "k", "status": "failed", "error_code": "timeout", "error": "no answer",
           "finish_reason": None, "text": None, "input": {"q": "x" * 500}}  # fmt: skip
    lines = row_lines(row, Place("in.parquet", 3))
    assert lines[0] == "row 3 (k)  in.parquet:3  failed timeout"
    assert lines[1] == "  error  no answer"
    assert max(map(len, lines)) < 120
    escape = row_lines({**row, "error": "a\x1b[31m\nb"}, Place("f", 1))[1]
    assert escape == "  error  a[31m b"


def test_what_to_do_is_told_once_for_each_code() -> None:
    group = FailureGroup("failed", "timeout", "no #", 3000, (1, 2), "no 1", "Wait.", exact=False)
    lines = group_lines([group, replace(group, pattern="x")])
    assert lines.count("  do       Wait.") == 1
    assert "failed timeout: about 3,000 rows (first 1, 2)" in lines
