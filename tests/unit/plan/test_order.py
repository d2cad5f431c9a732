from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchwright.core.outcomes import Outcome
from batchwright.core.records import Receipt
from batchwright.order import Sequencer
from batchwright.ordering.retry import order_failed_rows
from batchwright.read.files import list_files
from batchwright.rundir import artifacts, layout
from batchwright.rundir.prepared import read_slices
from batchwright.rundir.rejected import RejectedRows, column_kinds
from batchwright.running.progress import rows_done
from batchwright.write.parts import build_part, encode_part, summarise
from tests.unit.rundir.small_runs import SmallRun, order_files, prompts, rows_of, small_run
from tests.unit.rundir.test_state import put_receipt


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 3 rows, 2 parts in a batch of the order."""
    monkeypatch.setattr("batchwright.prepare.ROWS_PER_BATCH", 3)
    monkeypatch.setattr("batchwright.prepare.ROWS_PER_PART", 3)
    monkeypatch.setattr("batchwright.order.PARTS_PER_BATCH", 2)


def ordered(run: SmallRun) -> SmallRun:
    run.prepare()
    run.order()
    return run


def where(run: SmallRun) -> list[tuple[int, str, str, int]]:
    """(row, code, file name, line) of each rejection."""
    return [
        (line["row"], line["code"], Path(line["file"]).name, line["line"])
        for line in run.rejected()
    ]


def test_rows_are_numbered_through_files_sorted_by_name(tmp_path: Path, small_parts: None) -> None:
    files = {"b.jsonl": prompts(4, 5), "a.jsonl": prompts(5), "c.jsonl": prompts(3, 9)}
    run = ordered(small_run(tmp_path, files, run__chunk_rows=5))
    assert run.chunk_rows() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    for chunk in run.state().chunks:
        table, rows = read_slices(run.storage, chunk.slices)
        assert table.column("id").to_pylist() == [f"r{row}" for row in rows.tolist()]
    assert run.state().counts().rows == 12
    assert run.storage.names(layout.REJECTED) == []


@pytest.mark.parametrize("split_bytes", [30, 97, 1000, 1 << 20])
def test_a_rejection_names_the_physical_line_of_the_file(
    tmp_path: Path, small_parts: None, split_bytes: int
) -> None:
    rows: list[Any] = []
    bad = {}
    random.seed(split_bytes)
    for line in range(1, 60):
        kind = random.choice(["good", "good", "blank", "bad", "no prompt"])
        rows.append({"good": {"id": f"r{line}", "prompt": "é" * line}, "blank": "",
                     "bad": f"{{bad {line}", "no prompt": {"id": f"r{line}"}}[kind])  # fmt: skip
        if kind in ("bad", "no prompt"):
            bad[line] = "bad_json" if kind == "bad" else "missing_prompt"
    files = {"a.jsonl": rows, "b.jsonl": ["", "{bad", {"id": "last", "prompt": "x"}]}
    run = ordered(small_run(tmp_path, files, split_bytes=split_bytes))
    first = [(code, "a.jsonl", line) for line, code in bad.items()]
    assert [one[1:] for one in where(run)] == [*first, ("bad_json", "b.jsonl", 2)]
    assert run.state().counts().rows == sum(row != "" for row in rows) + 2


def test_a_long_line_that_spans_splits_is_one_row(tmp_path: Path) -> None:
    rows = [{"id": "a", "prompt": "x" * 500}, "{bad", {"id": "b", "prompt": "y"}]
    run = ordered(small_run(tmp_path, rows, split_bytes=50))
    assert len(run.manifest.splits) > 5
    assert run.chunk_rows() == [[0, 2]]
    assert where(run) == [(1, "bad_json", "rows.jsonl", 2)]


def test_parquet_rejections_name_the_row_of_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    folder.mkdir()
    texts = [f"p{i}" if i % 4 else "" for i in range(12)]
    table = pa.table({"id": [str(i) for i in range(12)], "prompt": texts})
    pq.write_table(table, folder / "a.parquet", row_group_size=3)
    pq.write_table(table.slice(0, 5).set_column(0, "id", pa.array(list("vwxyz"))),
                   folder / "b.parquet")  # fmt: skip
    run = ordered(small_run(tmp_path, folder, split_bytes=1))
    assert len(run.manifest.splits) > 2
    assert where(run) == [
        (0, "empty_prompt", "a.parquet", 0), (4, "empty_prompt", "a.parquet", 4),
        (8, "empty_prompt", "a.parquet", 8), (12, "empty_prompt", "b.parquet", 0),
        (16, "empty_prompt", "b.parquet", 4),
    ]  # fmt: skip


def test_of_rows_with_one_id_the_first_wins_across_files(tmp_path: Path, small_parts: None) -> None:
    files = {
        "a.jsonl": [*prompts(4), {"id": "r1", "prompt": "x"}],
        "b.jsonl": [{"id": "r3", "prompt": "x"}, {"id": "new", "prompt": "x"}],
        "c.jsonl": [{"id": "new", "prompt": "x"}, {"id": "r1", "prompt": "x"}],
    }
    run = ordered(small_run(tmp_path, files))
    assert run.chunk_rows() == [[0, 1, 2, 3, 6]]
    messages = {line["row"]: (line["code"], line["message"]) for line in run.rejected()}
    assert messages == {
        4: ("duplicate_id", "the id was first used by row 1"),
        5: ("duplicate_id", "the id was first used by row 3"),
        7: ("duplicate_id", "the id was first used by row 6"),
        8: ("duplicate_id", "the id was first used by row 1"),
    }
    assert run.state().counts().rejected == 4


def test_a_rejected_row_neither_takes_an_id_nor_repeats_one(tmp_path: Path) -> None:
    rows = [{"id": "a"}, {"id": "a", "prompt": "x"}, {"id": "a"}, {"id": "a", "prompt": "y"}]
    run = ordered(small_run(tmp_path, rows))
    assert run.chunk_rows() == [[1]]
    codes = [line["code"] for line in run.rejected()]
    assert codes == ["missing_prompt", "missing_prompt", "duplicate_id"]


@pytest.mark.parametrize("settings", [{"input__duplicate_ids": "allow"}, {"input__id": "row"}])
def test_repeated_ids_may_be_allowed(tmp_path: Path, settings: dict[str, str]) -> None:
    rows: list[Any] = [{"id": "a", "prompt": "x"}] * 3
    run = ordered(small_run(tmp_path, rows, **settings))
    assert run.chunk_rows() == [[0, 1, 2]]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 6, 7, 11, 12, 13])
def test_a_limit_cuts_the_input_whatever_the_parts(
    tmp_path: Path, small_parts: None, limit: int
) -> None:
    rows: list[Any] = [*prompts(5), "{bad", {"id": "r0", "prompt": "again"}, *prompts(5, 7)]
    run = ordered(
        small_run(tmp_path, {"a.jsonl": rows[:8], "b.jsonl": rows[8:]}, input__limit=limit)
    )
    counts = run.state().counts()
    assert counts.rows == min(limit, 12)
    assert counts.ordered
    taken = [row for chunk in run.chunk_rows() for row in chunk]
    assert taken == [row for row in range(min(limit, 12)) if row not in (5, 6)]
    assert [line["row"] for line in run.rejected()] == [row for row in (5, 6) if row < limit]
    assert counts.rejected == len(run.rejected())


def test_with_a_limit_the_order_is_complete_before_all_is_prepared(tmp_path: Path) -> None:
    run = small_run(tmp_path, {"a.jsonl": prompts(4), "b.jsonl": prompts(4, 4)}, input__limit=3)
    run.prepare([0])
    assert run.order().finished
    assert run.chunk_rows() == [[0, 1, 2]]


def test_nothing_is_ordered_beyond_a_part_that_is_missing(tmp_path: Path) -> None:
    files = {f"{name}.jsonl": prompts(2, 2 * place) for place, name in enumerate("abc")}
    run = small_run(tmp_path, files, run__chunk_rows=2)
    run.prepare([0, 2])
    sequencer = run.order()
    assert run.state().counts().rows == 2
    assert not sequencer.advance()
    assert not sequencer.finished
    run.prepare([1])
    assert sequencer.advance()
    assert sequencer.finished
    assert run.chunk_rows() == [[0, 1], [2, 3], [4, 5]]


def test_files_with_no_rows_are_stepped_over(tmp_path: Path) -> None:
    files: dict[str, Any] = {
        "a.jsonl": ["", "  "], "b.jsonl": prompts(2), "c.jsonl": [""], "d.jsonl": prompts(1, 2),
        "e.jsonl": ["", ""],
    }  # fmt: skip
    run = ordered(small_run(tmp_path, files))
    assert run.chunk_rows() == [[0, 1, 2]]
    assert run.state().counts().ordered


def test_an_input_of_blank_lines_has_an_order_without_chunks(tmp_path: Path) -> None:
    run = small_run(tmp_path, prompts(1))
    (tmp_path / "data" / "rows.jsonl").write_text("\n\n  \n")
    run.manifest = replace(run.manifest, files=tuple(list_files(run.job.input.path)))
    counts = ordered(run).state().counts()
    assert (counts.rows, counts.chunks, counts.ordered, counts.complete) == (0, 0, True, True)


def test_rejected_lines_hold_the_row_as_it_was(tmp_path: Path) -> None:
    long = {"id": "long", "text": "x" * 5000}
    run = ordered(small_run(tmp_path, ['{"id": "é", "n": 1e400}', "{bad", long, *prompts(1)]))
    first, second, third = run.rejected()
    assert list(first) == ["row", "id", "code", "message", "file", "line", "input"]
    assert first["input"] == '{"id": "é", "n": 1e400}'
    assert first["id"] == "é"
    assert second["input"] is None
    assert third["input"].startswith('{"id": "long"')
    assert len(third["input"]) == 2001


def test_a_rejected_row_without_an_id_column_is_known_by_its_number(tmp_path: Path) -> None:
    """Its neighbours that ran are: the results must not mix numbers and nulls."""
    run = ordered(small_run(tmp_path, [{"prompt": "a"}, {"prompt": ""}, {"prompt": "b"}]))
    assert [line["id"] for line in run.rejected()] == ["1"]


def test_rejected_parquet_rows_may_hold_anything(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": ["a", "b"],
            "prompt": ["", "x"],
            "at": pa.array([0, 1], pa.timestamp("us", "UTC")),
            "day": pa.array([0, 1], pa.date32()),
            "price": pa.array(["1.50", "2"]).cast(pa.decimal128(5, 2)),
            "nested": [{"list": [1, None]}, None],
            "nan": [float("nan"), 1.0],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    run = ordered(small_run(tmp_path, tmp_path / "t.parquet"))
    (line,) = run.rejected()
    assert line["input"]["nested"] == {"list": [1, None]}
    assert line["input"]["price"] == "1.50"
    assert line["input"]["nan"] is None


def test_rejected_tables_may_be_read_again_in_input_order(
    tmp_path: Path, small_parts: None
) -> None:
    rows: list[Any] = [*prompts(4), "{bad", {"id": "r0", "prompt": "x"}, "{worse"]
    run = ordered(small_run(tmp_path, rows, split_bytes=60))
    rejected = RejectedRows(run.storage, run.batches())
    assert rejected.numbers().tolist() == [4, 5, 6]
    assert rejected.numbers().tolist() == [4, 5, 6]
    tables = pa.concat_tables(list(rejected))
    assert tables.column("error_code").to_pylist() == ["bad_json", "duplicate_id", "bad_json"]
    assert RejectedRows(run.storage, []).numbers().tolist() == []


def test_column_kinds_are_those_of_all_parts(tmp_path: Path, small_parts: None) -> None:
    rows: list[Any] = [
        {"prompt": "a", "n": 1}, {"prompt": "b", "n": None}, {"prompt": "c", "n": 2.5},
        {"prompt": "d", "n": 2**63, "late": True}, "{bad", {"prompt": "e", "late": [1]},
    ]  # fmt: skip
    run = ordered(small_run(tmp_path, rows))
    kinds = column_kinds(run.storage, run.batches())
    assert list(kinds) == ["prompt", "n", "late"]
    assert kinds == {
        "prompt": {"string"}, "n": {"int", "null", "float", "bigint"}, "late": {"bool", "list"},
    }  # fmt: skip


def test_a_sequencer_goes_on_where_another_stopped(tmp_path: Path, small_parts: None) -> None:
    rows: list[Any] = [*prompts(9), "{bad", {"id": "r2", "prompt": "x"}, *prompts(6, 9)]
    alone = ordered(small_run(tmp_path, rows, run_dir="alone", run__chunk_rows=4))
    relay = small_run(tmp_path, tmp_path / "data", run_dir="relay", run__chunk_rows=4)
    relay.prepare()
    while True:
        sequencer = Sequencer(relay.storage, relay.manifest)
        if sequencer.finished:
            break
        assert sequencer.advance()
    assert order_files(relay) == order_files(alone)


class Meddling:
    """A storage in which something happens just before a write: the first, or one after it."""

    def __init__(self, run: SmallRun, meddle: Callable[[], Any], after: int = 0) -> None:
        self._quiet = after
        self._storage = run.storage
        self._meddle: Callable[[], Any] | None = meddle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def put(self, path: str, data: bytes) -> None:
        self._happen()
        self._storage.put(path, data)

    def commit(self, path: str, data: bytes) -> bool:
        self._happen()
        return self._storage.commit(path, data)

    def _happen(self) -> None:
        if self._quiet:
            self._quiet -= 1
            return
        meddle, self._meddle = self._meddle, None
        if meddle is not None:
            meddle()


@pytest.mark.parametrize("first_sees", [1, 3])
def test_a_lost_race_for_a_stretch_leaves_the_rejections_of_the_winner(
    tmp_path: Path, first_sees: int
) -> None:
    """The two saw different numbers of prepared parts, so their stretches differ."""
    files = {f"{name}.jsonl": ["{bad", *prompts(2, 3 * at)] for at, name in enumerate("abc")}
    run = small_run(tmp_path, files, run__chunk_rows=2)
    winner = Sequencer(run.storage, run.manifest)
    run.prepare(range(first_sees))

    def win() -> None:
        run.prepare()
        assert winner.advance()

    if first_sees == 3:  # the winner saw less than the loser
        hidden = run.storage.read(layout.prepared_receipt(1, 0))

        def win() -> None:  # type: ignore[no-redef]
            run.storage.delete(layout.prepared_receipt(1, 0))
            assert winner.advance()
            run.storage.put(layout.prepared_receipt(1, 0), hidden)

    loser = Sequencer(Meddling(run, win), run.manifest)  # type: ignore[arg-type]
    assert loser.advance()
    while not winner.finished and winner.advance():
        pass
    assert [line["row"] for line in run.rejected()] == [0, 3, 6]
    assert run.chunk_rows() == [[1, 2], [4, 5], [7, 8]]


@pytest.mark.parametrize("writes", [1, 2])
def test_a_crash_between_two_writes_loses_and_repeats_no_rejection(
    tmp_path: Path, writes: int
) -> None:
    run = small_run(tmp_path, ["{bad", *prompts(8)], run__chunk_rows=3)
    run.prepare()

    def crash() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        storage = Meddling(run, crash, after=writes - 1)
        Sequencer(storage, run.manifest).advance()  # type: ignore[arg-type]
    run.order()
    assert [line["row"] for line in run.rejected()] == [0]
    assert run.chunk_rows()[0] == [1, 2, 3]


def commit_outcomes(run: SmallRun, failures: dict[int, str], generation: int = 0) -> None:
    """A part and receipt for every chunk of a generation."""
    for chunk in run.state().chunks:
        if chunk.generation != generation:
            continue
        table, rows = read_slices(run.storage, chunk.slices)
        outcomes = [
            Outcome(row, [], error_code=failures[row], error="no") if row in failures
            else Outcome(row, [65], "A", "stop")
            for row in rows.tolist()
        ]  # fmt: skip
        part = build_part(table, rows, outcomes)
        file = layout.output_part(chunk.name, "x")
        run.storage.put(file, encode_part(part))
        put_receipt(
            run,
            Receipt(generation, chunk.number, file, "", worker="w", seconds=1.0, **summarise(part)),
        )


@pytest.fixture
def finished(tmp_path: Path, small_parts: None) -> SmallRun:
    files: dict[str, Any] = {
        "a.jsonl": prompts(5), "b.jsonl": [""], "c.jsonl": ["{bad", *prompts(6, 6)],
    }  # fmt: skip
    run = ordered(small_run(tmp_path, files, run__chunk_rows=4))
    commit_outcomes(run, {1: "timeout", 4: "aborted", 6: "timeout", 11: "aborted"})
    return run


def retried(run: SmallRun, generation: int) -> list[list[int]]:
    return [rows_of(chunk) for chunk in run.state().chunks if chunk.generation == generation]


def test_failed_rows_make_a_new_generation_in_order(finished: SmallRun) -> None:
    assert order_failed_rows(finished.storage, finished.state(), 3, []) == 4
    assert retried(finished, 1) == [[1, 4, 6], [11]]
    assert finished.state().generations == 2
    names = [chunk.name for chunk in finished.state().chunks if chunk.generation == 1]
    assert names == ["chunk-1-000000", "chunk-1-000001"]
    assert finished.state().counts().rows == 12


def test_a_run_that_is_retried_is_not_finished_until_its_results_are_written_again(
    finished: SmallRun,
) -> None:
    finished.storage.put(layout.SUCCESS, b"")
    assert order_failed_rows(finished.storage, finished.state(), 3, ["engine_killed"]) == 0
    assert finished.storage.read_if_there(layout.SUCCESS) is not None
    order_failed_rows(finished.storage, finished.state(), 3, [])
    assert finished.storage.read_if_there(layout.SUCCESS) is None


def test_rows_that_run_again_are_not_done(finished: SmallRun) -> None:
    assert finished.state().counts().done == 12
    order_failed_rows(finished.storage, finished.state(), 3, [])
    counts = finished.state().counts()
    assert (counts.settled, counts.done) == (12, 8)
    assert rows_done(counts, [{"uncommitted": 3}], expected=12) == 11
    commit_outcomes(finished, {4: "aborted"}, generation=1)
    assert finished.state().counts().done == 12


def test_only_failures_of_the_asked_codes_run_again(finished: SmallRun) -> None:
    assert order_failed_rows(finished.storage, finished.state(), None, ["timeout"]) == 2
    assert retried(finished, 1) == [[1, 6]]


def test_codes_that_no_row_failed_with_make_no_generation(finished: SmallRun) -> None:
    assert order_failed_rows(finished.storage, finished.state(), None, ["engine_killed"]) == 0
    assert finished.state().generations == 1


def test_the_newest_outcome_says_whether_a_row_runs_again(finished: SmallRun) -> None:
    order_failed_rows(finished.storage, finished.state(), None, [])
    commit_outcomes(finished, {4: "engine_refused", 11: "aborted"}, generation=1)
    assert order_failed_rows(finished.storage, finished.state(), None, ["aborted"]) == 1
    assert retried(finished, 2) == [[11]]
    commit_outcomes(finished, {}, generation=2)
    counts = finished.state().counts()
    assert (counts.ok, counts.failed, counts.rejected, counts.rows) == (10, 1, 1, 12)
    assert order_failed_rows(finished.storage, finished.state(), None, []) == 1
    assert retried(finished, 3) == [[4]]


def test_failures_are_counted_by_the_newest_outcome_of_each_row(finished: SmallRun) -> None:
    assert finished.state().counts().failures == {"timeout": 2, "aborted": 2}
    order_failed_rows(finished.storage, finished.state(), None, [])
    commit_outcomes(finished, {4: "engine_refused", 11: "aborted"}, generation=1)
    counts = finished.state().counts()
    assert counts.failed == 2
    left = {code: number for code, number in counts.failures.items() if number}
    assert left == {"engine_refused": 1, "aborted": 1}


def test_a_retry_that_is_under_way_takes_nothing_off_the_counts(finished: SmallRun) -> None:
    order_failed_rows(finished.storage, finished.state(), 3, [])
    counts = finished.state().counts()
    assert (counts.ok, counts.failed, counts.complete) == (7, 4, False)
    assert counts.failures == {"timeout": 2, "aborted": 2}


def test_a_retried_chunk_holds_the_rows_it_names(finished: SmallRun) -> None:
    order_failed_rows(finished.storage, finished.state(), None, [])
    (chunk,) = [chunk for chunk in finished.state().chunks if chunk.generation == 1]
    table, rows = read_slices(finished.storage, chunk.slices)
    assert rows.tolist() == [1, 4, 6, 11]
    assert [orjson.loads(text)["id"] for text in table.column("input").to_pylist()] == [
        "r1", "r4", "r6", "r11",
    ]  # fmt: skip


def test_a_retry_is_read_back(finished: SmallRun) -> None:
    order_failed_rows(finished.storage, finished.state(), None, [])
    batch = finished.state().batches[-1]
    assert artifacts.load(type(batch), artifacts.dump(batch), "x") == batch
    assert batch.last
