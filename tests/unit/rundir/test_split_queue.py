from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from batchwright.rundir import layout
from batchwright.rundir.ledger import Ledger
from batchwright.rundir.split_queue import SplitQueue
from batchwright.rundir.storage import READS_AT_ONCE
from tests.unit.rundir.small_runs import (
    CountingStorage,
    ManualClock,
    SmallRun,
    prompts,
    small_run,
)


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    return small_run(tmp_path, prompts(40), split_bytes=300)


def queue(run: SmallRun, name: str, clock: ManualClock) -> SplitQueue:
    ledger = Ledger(run.storage, name, clock, 60)
    ledger.heartbeat({})
    return SplitQueue(run.storage, ledger, run.manifest.splits)


def counted(
    run: SmallRun, name: str, clock: ManualClock, first: int = 0
) -> tuple[SplitQueue, CountingStorage]:
    """A queue of one more worker, and what it asks of the folder from now on."""
    storage = CountingStorage(run.storage.root)
    ledger = Ledger(storage, name, clock, 60)
    ledger.heartbeat({})
    return SplitQueue(storage, ledger, run.manifest.splits[first:]), storage


def taken(one: SplitQueue) -> list[int]:
    found = []
    while (split := one.take(1e9)) is not None:
        found.append(split.ordinal)
    return found


def claimed(run: SmallRun, worker: str, *splits: int, clock: ManualClock) -> Ledger:
    """Another worker, far away, that has claimed some splits."""
    ledger = Ledger(run.storage, worker, clock, 60)
    ledger.heartbeat({"host": "far-away"})
    for split in splits:
        assert ledger.claim(layout.split_unit(split))
    return ledger


def test_splits_are_shared(run: SmallRun) -> None:
    first, second = (queue(run, name, ManualClock()) for name in "ab")
    assert len(run.manifest.splits) > 3
    one = first.take(0)
    assert one is not None
    assert one.ordinal == 0
    rest = [split.ordinal for split in run.manifest.splits][1:]
    assert taken(second) == rest
    assert taken(first) == []


def test_what_is_prepared_is_not_taken_again(run: SmallRun) -> None:
    run.prepare()
    assert taken(queue(run, "a", ManualClock())) == []


def test_a_split_that_lacks_its_last_part_is_taken(
    run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchwright.prepare.ROWS_PER_BATCH", 2)
    monkeypatch.setattr("batchwright.prepare.ROWS_PER_PART", 2)
    run.prepare([0, 1])
    parts = [name for name in run.storage.names(layout.PREPARED) if name.endswith(".json")]
    assert len(parts) > 3, "splits of several parts"
    last = max(name for name in parts if name.startswith("part-000000"))
    run.storage.delete(f"{layout.PREPARED}/{last}")
    rest = [split.ordinal for split in run.manifest.splits][2:]
    assert taken(queue(run, "a", ManualClock())) == [0, *rest]


def test_splits_of_a_silent_worker_are_taken_over_unless_they_are_done(run: SmallRun) -> None:
    clock = ManualClock()
    gone = claimed(run, "gone", 0, 1, clock=clock)
    mine = queue(run, "a", clock)
    assert taken(mine) == [split.ordinal for split in run.manifest.splits[2:]]
    run.prepare([0])
    gone.heartbeat({}, ended=True)
    second = mine.take(2e9)
    assert second is not None
    assert second.ordinal == 1
    assert mine.take(3e9) is None


def test_the_first_split_of_a_silent_worker_comes_before_untouched_ones(run: SmallRun) -> None:
    clock = ManualClock()
    gone = claimed(run, "gone", 0, clock=clock)
    mine = queue(run, "a", clock)
    second = mine.take(0)
    assert second is not None
    assert second.ordinal == 1, "its holder may live"
    gone.heartbeat({}, ended=True)
    first = mine.take(100)
    assert first is not None
    assert first.ordinal == 0, "no row after it can be numbered without it"


def test_the_first_split_that_lacks_a_part_counts_not_the_first_of_another(run: SmallRun) -> None:
    clock = ManualClock()
    claimed(run, "busy", 0, clock=clock)
    gone = claimed(run, "gone", 1, clock=clock)
    mine = queue(run, "a", clock)
    assert (one := mine.take(0)) is not None
    assert one.ordinal == 2
    run.prepare([0])
    gone.heartbeat({}, ended=True)
    assert (left := mine.take(100)) is not None
    assert left.ordinal == 1


def test_what_another_took_over_is_not_taken_while_it_lives(run: SmallRun) -> None:
    """The queue does not list claims, so it learns of a newer one when it tries to make it."""
    clock = ManualClock()
    gone = claimed(run, "gone", 0, clock=clock)
    mine = queue(run, "a", clock)
    rest = taken(mine)
    assert rest == [split.ordinal for split in run.manifest.splits[1:]]
    gone.heartbeat({}, ended=True)
    thief = claimed(run, "thief", clock=clock)
    thief.refresh()
    assert thief.claim("split-000000")
    assert mine.take(2e9) is None
    assert mine.take(3e9) is None
    thief.heartbeat({}, ended=True)
    assert (back := mine.take(4e9)) is not None
    assert back.ordinal == 0
    assert "split-000000.2" in run.storage.names(layout.CLAIMS)


def test_a_worker_that_starts_again_takes_what_was_left_half_done(run: SmallRun) -> None:
    clock = ManualClock()
    claimed(run, "before", 0, 1, 2, clock=clock).heartbeat({}, ended=True)
    run.prepare([0, 2])
    assert taken(queue(run, "a", clock))[:2] == [3, 1]


def test_what_the_order_has_is_passed_over(run: SmallRun) -> None:
    clock = ManualClock()
    last = run.manifest.splits[-1].ordinal
    claimed(run, "busy", 0, 1, 2, clock=clock)
    mine, storage = counted(run, "a", clock)
    assert mine.take(0) is not None
    mine.pass_over(last)
    assert (left := mine.take(100)) is not None
    assert left.ordinal == last
    assert storage.awaited == [], "nobody else's split is left to be asked for"


def test_a_worker_that_joins_late_does_not_read_what_the_order_has(run: SmallRun) -> None:
    run.prepare(range(4))
    _, storage = counted(run, "a", ManualClock(), first=3)
    assert storage.awaited == [layout.prepared_receipt(3, 0)]


def shared_by_two(tmp_path: Path, rows: int) -> tuple[int, list[CountingStorage]]:
    """Two workers prepare a run in turns, and look at each other's splits each time."""
    run = small_run(tmp_path, prompts(rows), split_bytes=300, run_dir=f"run-{rows}")
    clock = ManualClock()
    queues, storages = zip(*(counted(run, name, clock) for name in "ab"), strict=True)
    for storage in storages:
        storage.listed.clear()
    idle = turn = 0
    while idle < 4:
        split = queues[turn % 2].take(100.0 * turn)
        if split is not None:
            run.prepare([split.ordinal])
        idle, turn = (0 if split else idle + 1), turn + 1
    return len(run.manifest.splits), list(storages)


def test_no_folder_is_listed_again_and_each_receipt_is_read_once(tmp_path: Path) -> None:
    splits, storages = shared_by_two(tmp_path, 300)
    assert splits > 30
    for storage in storages:
        assert storage.listed == []
        asked = Counter(storage.awaited)
        assert max(asked.values()) <= 2, "once too early, once when it is there"
        assert len(storage.created) <= splits


def test_a_split_costs_the_same_among_few_and_among_many(tmp_path: Path) -> None:
    costs = []
    for rows in (150, 600):
        splits, storages = shared_by_two(tmp_path, rows)
        calls = sum(len(one.awaited) + len(one.created) for one in storages)
        costs.append(calls / splits)
    assert costs[1] == pytest.approx(costs[0], rel=0.1)


def test_a_slow_first_split_does_not_make_the_others_dear(tmp_path: Path) -> None:
    """While it is being prepared nothing after it is in the order, and all the others are done."""
    run = small_run(tmp_path, prompts(600), split_bytes=300)
    clock = ManualClock()
    splits = len(run.manifest.splits)
    slow = claimed(run, "slow", 0, clock=clock)
    other = queue(run, "b", clock)
    mine, storage = counted(run, "a", clock)
    storage.listed.clear()
    looks = 0
    while (split := mine.take(100.0 * looks)) is not None:
        looks += 1
        run.prepare([split.ordinal])
        if (another := other.take(0)) is not None:
            run.prepare([another.ordinal])
    assert looks == pytest.approx(splits / 2, abs=1)
    assert storage.listed == []
    assert len(storage.awaited) <= looks * READS_AT_ONCE + splits
    seen = len(storage.awaited)
    assert mine.take(1e6) is None
    assert mine.take(2e6) is None
    assert len(storage.awaited) <= seen + 2, "of what is prepared nothing is asked any more"
    slow.heartbeat({}, ended=True)
    assert (first := mine.take(3e6)) is not None
    assert first.ordinal == 0
