from __future__ import annotations

from pathlib import Path

import pytest

from batchwright.rundir.ledger import Ledger
from batchwright.rundir.split_queue import SplitQueue
from tests.unit.rundir.small_runs import ManualClock, SmallRun, prompts, small_run


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    return small_run(tmp_path, prompts(40), split_bytes=300)


def queue(run: SmallRun, name: str, clock: ManualClock) -> SplitQueue:
    ledger = Ledger(run.storage, name, clock, 60)
    ledger.heartbeat({})
    return SplitQueue(run.storage, ledger, run.manifest.splits)


def taken(one: SplitQueue) -> list[int]:
    found = []
    while (split := one.take(1e9)) is not None:
        found.append(split.ordinal)
    return found


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


def test_splits_of_a_silent_worker_are_taken_over_unless_they_are_done(run: SmallRun) -> None:
    clock = ManualClock()
    gone = Ledger(run.storage, "gone", clock, 60)
    gone.heartbeat({"host": "far-away"})
    for split in run.manifest.splits[:2]:
        assert gone.claim(f"split-{split.ordinal:06d}")
    mine = queue(run, "a", clock)
    assert taken(mine) == [split.ordinal for split in run.manifest.splits[2:]]
    gone.heartbeat({}, ended=True)
    assert mine.take(2e9) is not None


def test_the_first_split_of_a_silent_worker_comes_before_untouched_ones(run: SmallRun) -> None:
    clock = ManualClock()
    gone = Ledger(run.storage, "gone", clock, 60)
    gone.heartbeat({"host": "far-away"})
    assert gone.claim("split-000000")
    mine = queue(run, "a", clock)
    second = mine.take(0)
    assert second is not None
    assert second.ordinal == 1, "its holder may live"
    gone.heartbeat({}, ended=True)
    first = mine.take(100)
    assert first is not None
    assert first.ordinal == 0, "no row after it can be numbered without it"
