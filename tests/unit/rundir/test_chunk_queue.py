from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from batchwright.core.records import Chunk
from batchwright.rundir import layout
from batchwright.rundir.chunk_queue import LOOK_AGAIN_S, ChunkQueue
from batchwright.rundir.ledger import STARTING_COUNT_S, Ledger
from tests.unit.rundir.small_runs import ManualClock, SmallRun, prompts, small_run
from tests.unit.rundir.test_state import put_receipt, receipt_of

LEASE_S = 60.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    run = small_run(tmp_path, prompts(10), run__chunk_rows=2)
    run.prepare()
    run.order()
    return run


def queue_of(run: SmallRun, name: str, clock: ManualClock) -> ChunkQueue:
    ledger = Ledger(run.storage, name, clock, LEASE_S)
    ledger.heartbeat({})
    return ChunkQueue(run.storage, ledger)


def take(queue: ChunkQueue, clock: ManualClock) -> Chunk | None:
    """Take a chunk, late enough for a look at the files."""
    clock.sleep(LOOK_AGAIN_S)
    return queue.take(clock.monotonic())


def take_all(queue: ChunkQueue, clock: ManualClock) -> list[int]:
    taken = []
    while (chunk := take(queue, clock)) is not None:
        taken.append(chunk.number)
    return taken


def done(run: SmallRun, chunk: int) -> None:
    put_receipt(run, receipt_of(chunk, 2, {}))


def test_chunks_come_in_the_order_of_the_order(run: SmallRun, clock: ManualClock) -> None:
    assert take_all(queue_of(run, "a", clock), clock) == [0, 1, 2, 3, 4]


def test_two_queues_share_and_take_no_chunk_twice(run: SmallRun, clock: ManualClock) -> None:
    first, second = queue_of(run, "a", clock), queue_of(run, "b", clock)
    taken = [take(queue, clock) for queue in (first, second, second, first, second, first, second)]
    assert [chunk and chunk.number for chunk in taken] == [0, 1, 2, 3, 4, None, None]


def test_a_chunk_with_a_receipt_is_not_taken(run: SmallRun, clock: ManualClock) -> None:
    done(run, 0)
    done(run, 3)
    assert take_all(queue_of(run, "a", clock), clock) == [1, 2, 4]


def test_a_silent_worker_s_chunks_are_taken_over(run: SmallRun, clock: ManualClock) -> None:
    state = {"host": "far", "boot": 0, "pid": 1, "started": 0.0, "beat": 1}
    run.storage.put(layout.heartbeat("gone"), orjson.dumps(state))
    for number in (1, 2):
        run.storage.create(layout.claim(f"chunk-0-{number:06d}", 0), b'{"worker":"gone"}')
    queue = queue_of(run, "a", clock)
    assert take_all(queue, clock) == [0, 3, 4]
    clock.sleep(LEASE_S)
    assert take_all(queue, clock) == [1, 2]


def test_a_worker_that_ended_leaves_its_chunk_at_once(run: SmallRun, clock: ManualClock) -> None:
    theirs = Ledger(run.storage, "them", clock, LEASE_S)
    theirs.heartbeat({})
    assert theirs.claim("chunk-0-000000")
    queue = queue_of(run, "a", clock)
    assert take_all(queue, clock) == [1, 2, 3, 4]
    theirs.heartbeat({}, ended=True)
    assert take_all(queue, clock) == [0]


def test_a_chunk_that_another_finished_is_not_taken_over(run: SmallRun, clock: ManualClock) -> None:
    theirs = Ledger(run.storage, "them", clock, LEASE_S)
    theirs.heartbeat({})
    assert theirs.claim("chunk-0-000000")
    queue = queue_of(run, "a", clock)
    take_all(queue, clock)
    done(run, 0)
    theirs.heartbeat({}, ended=True)
    assert take(queue, clock) is None


def test_files_are_listed_only_now_and_then(run: SmallRun, clock: ManualClock) -> None:
    queue = queue_of(run, "a", clock)
    take_all(queue, clock)
    theirs = Ledger(run.storage, "b", clock, LEASE_S)
    assert queue.take(clock.monotonic()) is None
    theirs.heartbeat({}, ended=True)
    assert queue.take(clock.monotonic()) is None


def test_finished_only_when_every_chunk_has_a_receipt(run: SmallRun, clock: ManualClock) -> None:
    queue, other = queue_of(run, "a", clock), queue_of(run, "b", clock)
    mine = [take(queue, clock) for _ in range(3)]
    theirs = take_all(other, clock)
    assert take(queue, clock) is None
    assert not queue.finished()
    for chunk in mine:
        assert chunk is not None
        done(run, chunk.number)
        queue.mark_done(chunk)
    assert not queue.finished()
    for number in theirs:
        done(run, number)
    assert take(queue, clock) is None
    assert queue.finished()


def test_a_queue_is_not_finished_before_the_order_is_complete(
    tmp_path: Path, clock: ManualClock
) -> None:
    run = small_run(tmp_path, {"a.jsonl": prompts(4), "b.jsonl": prompts(4, 4)}, run__chunk_rows=4)
    run.prepare([0])
    run.order()
    queue = queue_of(run, "a", clock)
    assert take_all(queue, clock) == [0]
    done(run, 0)
    assert take(queue, clock) is None
    assert not queue.finished()
    run.prepare([1])
    run.order()
    assert take_all(queue, clock) == [1]
    done(run, 1)
    take(queue, clock)
    assert queue.finished()


def test_a_run_with_nothing_left_is_finished_after_one_look(
    run: SmallRun, clock: ManualClock
) -> None:
    for number in range(5):
        done(run, number)
    queue = queue_of(run, "a", clock)
    assert take(queue, clock) is None
    assert queue.finished()


def test_who_only_looks_whether_there_is_work_claims_nothing(
    run: SmallRun, clock: ManualClock
) -> None:
    starting, running = queue_of(run, "a", clock), queue_of(run, "b", clock)

    def has_free() -> bool:
        clock.sleep(LEASE_S / 10)  # longer than the pause between two looks
        return starting.has_free(clock.monotonic())

    assert has_free()
    assert take_all(running, clock) == [0, 1, 2, 3, 4]
    assert not has_free()
    Ledger(run.storage, "b", clock, LEASE_S).heartbeat({}, ended=True)
    assert has_free()


UP = {"role": "infer", "engine": {"name": "fake"}}
STARTING = {"role": "infer", "engine": None}


def engines(
    run: SmallRun, clock: ManualClock, count: int, others: dict[str, Any] = UP
) -> list[ChunkQueue]:
    """Queues of workers that run engines, the first of which is up."""
    queues = []
    for number in range(count):
        ledger = Ledger(run.storage, f"engine-{number}", clock, LEASE_S)
        ledger.heartbeat(others if number else UP)
        queues.append(ChunkQueue(run.storage, ledger))
    return queues


def take_what_it_may(queue: ChunkQueue, clock: ManualClock) -> list[int]:
    """Chunks of two rows each, of which none is finished."""
    taken: list[int] = []
    while (chunk := queue.take(clock.monotonic(), 2 * len(taken))) is not None:
        taken.append(chunk.number)
        clock.sleep(LOOK_AGAIN_S)
    return taken


def test_the_first_engine_leaves_the_others_their_share(run: SmallRun, clock: ManualClock) -> None:
    first, second = engines(run, clock, 2)
    assert take_what_it_may(first, clock) == [0, 1, 2]
    assert not first.more_to_come, "it is not short of rows: what is left is not for it"
    second_s = [second.take(clock.monotonic(), held) for held in (0, 2)]
    assert [chunk and chunk.number for chunk in second_s] == [3, 4]


def test_one_that_starts_has_a_share_for_a_few_seconds(run: SmallRun, clock: ManualClock) -> None:
    first, _ = engines(run, clock, 2, others=STARTING)
    assert take_what_it_may(first, clock) == [0, 1, 2]
    clock.sleep(STARTING_COUNT_S)
    assert first.take(clock.monotonic(), 6) == run.state().chunks[3], "it may need a minute more"


def test_whoever_holds_nothing_takes_what_is_left(run: SmallRun, clock: ManualClock) -> None:
    first, _ = engines(run, clock, 2)
    assert take_what_it_may(first, clock) == [0, 1, 2]
    assert [first.take(clock.monotonic(), held) for held in (0, 0)] == run.state().chunks[3:]


def test_an_engine_alone_takes_everything(run: SmallRun, clock: ManualClock) -> None:
    (only,) = engines(run, clock, 1)
    assert take_what_it_may(only, clock) == [0, 1, 2, 3, 4]


def test_the_share_of_one_that_fell_silent_is_taken(run: SmallRun, clock: ManualClock) -> None:
    first, _ = engines(run, clock, 2)
    assert take_what_it_may(first, clock) == [0, 1, 2]
    clock.sleep(LEASE_S + 1)
    assert first.take(clock.monotonic(), 6) == run.state().chunks[3]


def test_one_that_ended_has_no_share(run: SmallRun, clock: ManualClock) -> None:
    first, _ = engines(run, clock, 2)
    Ledger(run.storage, "engine-1", clock, LEASE_S).heartbeat(UP, ended=True)
    assert take_what_it_may(first, clock) == [0, 1, 2, 3, 4]


def test_rows_that_are_finished_are_nobody_s_share(run: SmallRun, clock: ManualClock) -> None:
    first, second = engines(run, clock, 2)
    assert take_what_it_may(first, clock) == [0, 1, 2]
    assert second.take(clock.monotonic(), 0) == run.state().chunks[3]
    for number in (0, 1, 2):
        done(run, number)
    clock.sleep(LOOK_AGAIN_S)
    assert second.take(clock.monotonic(), 2) is None, "one chunk each of the two that are left"
    assert first.take(clock.monotonic(), 0) == run.state().chunks[4]


def test_nobody_counts_engines_while_enough_is_left(tmp_path: Path, clock: ManualClock) -> None:
    run = small_run(tmp_path, prompts(300), run__chunk_rows=2)
    run.prepare()
    run.order()
    first, _ = engines(run, clock, 2)
    taken = [first.take(clock.monotonic(), held) for held in (0, 2, 4)]
    assert all(taken)
    assert first._engines._count == 1, "each count is a listing"
    assert first.take(clock.monotonic(), 148) is not None
    assert first._engines._count == 2


def test_claims_of_splits_are_not_listed_for_chunks(run: SmallRun, clock: ManualClock) -> None:
    """They come after those of chunks by their names, and in an object store each 1,000 are a request."""
    ledger = Ledger(run.storage, "preparer", clock, LEASE_S)
    assert ledger.claim(layout.split_unit(0))
    queue = queue_of(run, "a", clock)
    assert ledger.claim(layout.split_unit(1))
    take(queue, clock)
    assert not queue._ledger.is_claimed(layout.split_unit(1))
    assert take_all(queue_of(run, "b", clock), clock) == [1, 2, 3, 4]
