"""The sequencer with engines that take chunks, finish them, and say how large their cache is."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchwright.core.errors import StorageError
from batchwright.core.records import GROUPED, Chunk, OrderDecision, Receipt
from batchwright.order import Sequencer
from batchwright.rundir import artifacts, layout
from batchwright.rundir.prepared import read_slices, row_numbers
from batchwright.rundir.storage import Storage
from tests.unit.ordering.test_arrange import changes, documents_of, shuffled_documents
from tests.unit.rundir.small_runs import SmallRun, small_run

ROWS = 120
SMALL_CACHE = 600


class Engines:
    """One worker's traces in the run directory."""

    def __init__(self, run: SmallRun, kv_tokens: int = SMALL_CACHE) -> None:
        self.run = run
        self.at = 1000.0
        self.kv_tokens = kv_tokens
        self.say(engine=None)

    def say(self, *, engine: dict[str, Any] | None = None, ended: bool = False) -> None:
        state = {"role": "infer", "ended": ended, "at": self.at, "engine": engine}
        self.run.storage.put(layout.heartbeat("w"), json.dumps(state).encode())

    def start(self) -> None:
        self.say(engine={"name": "fake", "kv_tokens": self.kv_tokens})

    def run_chunk(self, seconds: dict[bool, float] | None = None) -> Chunk | None:
        """Take the next chunk and finish it; `seconds` for grouped and for other chunks."""
        state = self.run.state()
        free = [chunk for chunk in state.chunks if chunk.name not in state.done]
        if not free:
            return None
        chunk = free[0]
        table, rows = read_slices(self.run.storage, chunk.slices)
        tokens = sum(map(len, table.column("token_ids").to_pylist()))
        seconds = seconds or {True: 1.0, False: 1.0}
        self.at += seconds[chunk.slices[0].first_row == GROUPED]
        self.run.storage.create(layout.claim(chunk.name, 0), b'{"worker": "w"}')
        receipt = Receipt(
            0, chunk.number, "f", "", len(rows), len(rows), 0, 0, tokens, 4 * len(rows), 0, 0,
            "w", 100.0, finished_at=self.at,
        )  # fmt: skip
        self.run.storage.commit(layout.receipt(chunk.name), artifacts.dump(receipt))
        return chunk


@pytest.fixture(autouse=True)
def _engines_are_looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do in no time here what else takes seconds."""
    monkeypatch.setattr("batchwright.ordering.watching.LOOK_AT_ENGINES_S", 0.0)
    monkeypatch.setattr("batchwright.ordering.watching.LOOKING_SHARE", float("inf"))


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    return begin(tmp_path, "auto")


def begin(tmp_path: Path, order: str, chunk_rows: int = 5) -> SmallRun:
    run = small_run(
        tmp_path, shuffled_documents(), sampling__max_tokens=8, run__order=order,
        run__chunk_rows=chunk_rows,
    )  # fmt: skip
    run.prepare()
    return run


def advance(sequencer: Sequencer) -> None:
    while not sequencer.finished and sequencer.advance():
        pass


def rows_by_order(run: SmallRun) -> tuple[list[int], list[int]]:
    """Row numbers of the chunks in file order, and of the grouped ones."""
    found: tuple[list[int], list[int]] = ([], [])
    for chunk in run.state().chunks:
        grouped = chunk.slices[0].first_row == GROUPED
        found[grouped].extend(row_numbers(run.storage, chunk.slices).tolist())
    return found


def decision(run: SmallRun) -> OrderDecision:
    raw = run.storage.read(layout.ORDER_DECISION)
    return artifacts.load(OrderDecision, raw, layout.ORDER_DECISION)


def finish(
    engines: Engines, sequencer: Sequencer, seconds: dict[bool, float] | None = None
) -> None:
    for _ in range(200):
        advance(sequencer)
        if engines.run_chunk(seconds) is None and sequencer.finished:
            return
    pytest.fail("the run does not end")


def test_nothing_is_cut_while_engines_only_start(run: SmallRun) -> None:
    engines = Engines(run)
    sequencer = Sequencer(run.storage, run.manifest)
    advance(sequencer)
    assert run.chunk_rows() == []
    assert run.state().counts().rows == ROWS
    assert not run.state().counts().ordered
    engines.start()
    advance(sequencer)
    assert decision(run).order == "prefix", "it pays even if every answer fills its cap"
    assert len(rows_by_order(run)[0]) <= 15, "what the engine needs for the moment"


def test_what_the_plan_says_of_the_cache_is_enough(run: SmallRun) -> None:
    Engines(run)
    sequencer = Sequencer(run.storage, replace(run.manifest, kv_tokens=SMALL_CACHE))
    advance(sequencer)
    assert decision(run).order == "prefix"
    assert rows_by_order(run)[1], "grouped chunks lie ready when the first engine is up"


def test_while_the_order_is_open_only_a_few_chunks_are_cut(run: SmallRun) -> None:
    engines = Engines(run, kv_tokens=1_000_000)
    engines.start()
    sequencer = Sequencer(run.storage, run.manifest)
    advance(sequencer)
    assert [len(rows) for rows in run.chunk_rows()] == [5, 5, 5]
    assert not run.state().counts().ordered
    assert len(run.state().waiting) == 1
    assert not sequencer.advance(), "nobody has taken a chunk"
    run.storage.create(layout.claim("chunk-0-000000", 0), b"{}")
    advance(sequencer)
    assert len(run.chunk_rows()) == 4
    assert not run.storage.names(layout.ORDER_DECISION), "the length of answers is not known yet"
    engines.run_chunk()
    advance(sequencer)
    assert decision(run).order == "file"
    assert run.state().counts().ordered


def test_rows_that_share_run_next_to_each_other(run: SmallRun) -> None:
    engines = Engines(run)
    engines.start()
    sequencer = Sequencer(run.storage, run.manifest)
    finish(engines, sequencer)
    first, grouped = rows_by_order(run)
    assert first == list(range(len(first)))
    assert sorted([*first, *grouped]) == list(range(ROWS))
    assert len(grouped) > 80
    names = documents_of(grouped)
    assert changes(names) == len(set(names)) - 1
    assert run.state().counts().complete
    assert run.storage.read(layout.EVENTS).count(b"order_decided") == 1
    assert b"order_kept" in run.storage.read(layout.EVENTS)


def test_until_the_guard_has_seen_enough_groups_come_in_stretches(run: SmallRun) -> None:
    engines = Engines(run)
    engines.start()
    sequencer = Sequencer(run.storage, run.manifest)
    grouped_cut: list[int] = []
    for _ in range(200):
        advance(sequencer)
        grouped_cut.append(len(rows_by_order(run)[1]))
        if sequencer.finished:
            break
        engines.run_chunk()
    steps = [b - a for a, b in itertools.pairwise(grouped_cut) if b > a]
    assert max(steps[:-1]) <= 4 * 5
    assert steps[-1] > 4 * 5, "after the verdict all come at once"


@pytest.mark.parametrize(("grouped_s", "kept"), [(0.9, True), (1.0, True), (1.2, False)])
def test_groups_that_run_slower_go_back_to_file_order(
    run: SmallRun, grouped_s: float, kept: bool
) -> None:
    engines = Engines(run)
    engines.start()
    sequencer = Sequencer(run.storage, run.manifest)
    finish(engines, sequencer, {True: grouped_s, False: 1.0})
    first, grouped = rows_by_order(run)
    assert sorted([*first, *grouped]) == list(range(ROWS))
    events = run.storage.read(layout.EVENTS)
    assert (b"order_kept" in events) is kept
    assert (b"order_given_up" in events) is not kept
    if not kept:
        assert 30 <= len(grouped) <= 60
        begun = len(first) - (ROWS - len(grouped) - first.index(max(first)) - 1)
        assert first[begun:] == sorted(first[begun:])
        assert run.state().counts().complete


def test_a_cache_that_holds_everything_means_file_order(run: SmallRun) -> None:
    engines = Engines(run, kv_tokens=10**6)
    engines.start()
    finish(engines, Sequencer(run.storage, run.manifest))
    assert rows_by_order(run) == (list(range(ROWS)), [])
    assert decision(run).order == "file"
    assert not [name for name in run.storage.names(layout.PREPARED) if "grouped" in name]


def test_an_engine_that_does_not_say_its_size_means_file_order(run: SmallRun) -> None:
    engines = Engines(run, kv_tokens=0)
    engines.start()
    finish(engines, Sequencer(run.storage, run.manifest))
    assert rows_by_order(run) == (list(range(ROWS)), [])


def test_nobody_to_wait_for_means_file_order_at_once(run: SmallRun) -> None:
    assert run.order().finished
    assert rows_by_order(run) == (list(range(ROWS)), [])
    Engines(run).say(ended=True)
    again = begin(run.storage.root.parent / "again", "auto")
    Engines(again).say(ended=True)
    assert again.order().finished


def test_a_size_that_is_expected_will_do_before_there_is_an_engine(run: SmallRun) -> None:
    sequencer = Sequencer(run.storage, replace(run.manifest, kv_tokens=SMALL_CACHE))
    advance(sequencer)
    assert sequencer.finished
    assert decision(run).order == "prefix"
    assert len(rows_by_order(run)[1]) == ROWS - 15


def test_file_order_is_cut_at_once(tmp_path: Path) -> None:
    run = begin(tmp_path, "file")
    Engines(run).start()
    sequencer = Sequencer(run.storage, run.manifest)
    assert sequencer.advance()
    assert sequencer.finished
    assert rows_by_order(run) == (list(range(ROWS)), [])
    assert len(run.batches()) == 1


@pytest.mark.parametrize("order", ["prefix", "length", "longest"])
def test_an_order_that_is_asked_for_needs_no_engine(tmp_path: Path, order: str) -> None:
    run = begin(tmp_path, order)
    assert run.order().finished
    first, grouped = rows_by_order(run)
    assert len(first) == 15
    assert sorted([*first, *grouped]) == list(range(ROWS))
    assert decision(run).order == order
    assert {batch.order for batch in run.batches()[1:]} == {order}


def test_rejected_and_repeated_rows_are_in_no_group(tmp_path: Path) -> None:
    rows: list[Any] = shuffled_documents()
    rows[40:40] = ["{bad", {**rows[3], "prompt": "again"}, "{worse"]
    run = small_run(tmp_path, rows, run__order="prefix", run__chunk_rows=5)
    run.prepare()
    assert run.order().finished
    first, grouped = rows_by_order(run)
    assert sorted([*first, *grouped]) == [row for row in range(123) if row not in (40, 41, 42)]
    assert run.state().counts().rejected == 3


def written(run: SmallRun) -> tuple[list[str], bool]:
    decided = run.storage.read_if_there(layout.ORDER_DECISION) is not None
    return run.storage.names(layout.ORDER), decided


def test_another_may_go_on_after_every_write(tmp_path: Path) -> None:
    """Who takes over begins to look again, so each gets as far as its next write."""
    run = begin(tmp_path, "prefix")
    for _ in range(30):
        sequencer = Sequencer(run.storage, run.manifest)
        if sequencer.finished:
            break
        before = written(run)
        while written(run) == before:
            assert sequencer.advance()
    assert sequencer.finished
    first, grouped = rows_by_order(run)
    assert sorted([*first, *grouped]) == list(range(ROWS))
    left = [path.name for path in (run.storage.root / layout.PREPARED).iterdir()]
    assert sorted(name.split("-")[0] for name in left) == ["grouped", "part", "part"]


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 6, 7])
def test_two_that_group_at_once_make_one_order(tmp_path: Path, steps: int) -> None:
    run = begin(tmp_path, "prefix")
    slow = Sequencer(run.storage, run.manifest)
    for _ in range(steps):
        slow.advance()
    fast = Sequencer(run.storage, run.manifest)
    advance(fast)
    assert fast.finished
    before = rows_by_order(run)
    advance(slow)
    assert slow.finished
    assert rows_by_order(run) == before
    for chunk in run.state().chunks:
        read_slices(run.storage, chunk.slices)


def test_a_full_disk_is_an_error_that_says_so(
    tmp_path: Path,
) -> None:
    run = begin(tmp_path, "prefix")
    sequencer = Sequencer(run.storage, run.manifest)
    for _ in range(3):
        sequencer.advance()
    for folder in (run.storage.root / layout.PREPARED).glob(".grouping-*"):
        shutil.rmtree(folder)
    with pytest.raises(StorageError, match="cannot be put in order"):
        advance(sequencer)


def test_the_order_may_be_changed_to_file_before_it_is_settled(tmp_path: Path) -> None:
    run = begin(tmp_path, "prefix")
    Sequencer(run.storage, run.manifest).advance()
    run.manifest.job["run"]["order"] = "file"
    assert run.order().finished
    assert rows_by_order(run) == (list(range(ROWS)), [])


def test_waiting_rows_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchwright.prepare.ROWS_PER_BATCH", 6)
    monkeypatch.setattr("batchwright.prepare.ROWS_PER_PART", 6)
    monkeypatch.setattr("batchwright.order.PARTS_PER_BATCH", 2)
    run = begin(tmp_path, "auto")
    Engines(run)
    advance(Sequencer(run.storage, run.manifest))
    batches = run.batches()
    assert len(batches) == 10
    assert all(len(batch.waiting) <= 2 for batch in batches[1:])
    rest = row_numbers(run.storage, run.state().waiting).tolist()
    assert [*rows_by_order(run)[0], *rest] == list(range(ROWS))


@pytest.mark.parametrize("pool", [0, 50])
def test_a_pilot_comes_first_and_the_rest_is_grouped(tmp_path: Path, pool: int) -> None:
    run = begin(tmp_path, "prefix")
    run.manifest = replace(run.manifest, pilot_rows=20, pilot_pool=pool)
    assert run.order().finished
    assert sum(chunk.num_rows for chunk in run.state().pilot) == 20
    first, grouped = rows_by_order(run)
    assert sorted([*first, *grouped]) == list(range(ROWS))
    assert len(first) == 20 + 10, "the pilot is one of the three chunks that are kept ahead"
    names = documents_of(grouped)
    assert changes(names) == len(set(names)) - 1


def begin_in_files(tmp_path: Path) -> SmallRun:
    """Two files of 60 rows, the first prepared; 4 rows are the pilot."""
    rows = shuffled_documents()
    run = small_run(tmp_path, {"a.jsonl": rows[:60], "b.jsonl": rows[60:]}, run__order="file")
    assert len(run.manifest.splits) == 2
    run.prepare([0])
    run.manifest = replace(run.manifest, pilot_rows=4, pilot_pool=100)
    return run


def test_a_pilot_is_chosen_from_all_that_is_prepared_while_engines_start(tmp_path: Path) -> None:
    run = begin_in_files(tmp_path)
    Engines(run)
    sequencer = Sequencer(run.storage, run.manifest)
    advance(sequencer)
    assert run.batches() == [], "the engine has time: more rows say more"
    run.prepare([1])
    advance(sequencer)
    assert run.batches()[0].rows == ROWS
    assert sum(chunk.num_rows for chunk in run.state().pilot) == 4


def test_an_engine_that_is_up_does_not_wait_for_more_rows_to_choose_from(tmp_path: Path) -> None:
    run = begin_in_files(tmp_path)
    Engines(run).start()
    advance(Sequencer(run.storage, run.manifest))
    assert run.batches()[0].rows == 60
    assert sum(chunk.num_rows for chunk in run.state().pilot) == 4


def test_receipts_of_parts_that_wait_for_others_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin_in_files(tmp_path)
    Engines(run)
    sequencer = Sequencer(run.storage, run.manifest)
    asked: list[str] = []
    read = type(run.storage).read_if_there

    def counted(storage: Storage, path: str) -> bytes | None:
        asked.append(path)
        return read(storage, path)

    monkeypatch.setattr(Storage, "read_if_there", counted)
    for _ in range(3):
        sequencer.advance()
    assert asked.count(layout.prepared_receipt(0, 0)) == 1
    assert asked.count(layout.prepared_receipt(1, 0)) == 3, "the one that is not there yet"
