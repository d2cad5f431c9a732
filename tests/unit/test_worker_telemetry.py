"""What a worker's readings say of its run: rows that are missing count as such, the end does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batchwright.core.ports import EngineSettings
from batchwright.core.readings import STOPPING
from batchwright.engines.fake import FakeEngine
from batchwright.engines.feeder import Supervisor
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.ledger import Ledger, read_heartbeat
from batchwright.rundir.readings import reading_from, worker_readings
from batchwright.worker import Worker
from tests.unit.rundir.small_runs import SmallRun, prompts, small_run

ROWS = 40


class Stop(threading.Event):
    """Says when the worker has looked for more in vain, for the so-manieth time."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = threading.Semaphore(0)

    def wait(self, timeout: float | None = None) -> bool:
        self.looked.release()
        return super().wait(timeout)

    def let_it_look(self, times: int) -> None:
        for _ in range(times):
            assert self.looked.acquire(timeout=30)


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    run = small_run(tmp_path, prompts(ROWS), run__chunk_rows=10)
    run.prepare()
    return run


def worker_of(run: SmallRun, **options: object) -> Worker:
    settings = EngineSettings("fake", "", max_num_seqs=8, max_model_len=8192, options=options)
    return Worker(
        run.storage, run.job, "w", SystemClock(), Supervisor(FakeEngine, settings), run.tokenizer
    )


@contextmanager
def at_work(worker: Worker, stop: Stop) -> Iterator[None]:
    thread = threading.Thread(target=worker.run, args=(stop,))
    thread.start()
    yield
    thread.join(20)
    assert not thread.is_alive()


def test_an_engine_without_rows_is_starved_and_its_rows_are_told(run: SmallRun) -> None:
    stop = Stop()
    with at_work(worker_of(run, kv_tokens=1_000_000), stop):
        stop.let_it_look(5)  # its engine is up: rows are prepared, and in no chunk yet
        order = run.order()
        while not order.finished:
            order.advance()
    first, *_, last = worker_readings(run.storage, "w")
    assert first.engine is None or first.rows == 0
    assert last.feed is not None
    assert last.engine is not None
    assert last.process is not None
    assert last.feed.starved_s > 0
    assert last.feed.media_s == last.feed.commit_wait_s == 0
    assert (last.rows, last.feed.committed_rows, last.feed.in_flight) == (ROWS, ROWS, 0)
    assert last.feed.commits_waiting == 0
    assert (last.phase, last.feed.max_num_seqs, last.restarts) == (STOPPING, 8, 0)
    assert last.feed.committed_bytes > 0
    assert last.feed.commit_s > 0
    assert last.engine.steps > 0
    assert max(one.kv_peak for one in worker_readings(run.storage, "w")) > 0
    assert last.process.cpu_s > 0
    assert reading_from(read_heartbeat(run.storage, "w")["reading"]) == last


def test_at_the_end_an_engine_that_waits_for_others_is_not_starved(run: SmallRun) -> None:
    run.order()
    other = Ledger(run.storage, "other", SystemClock(), 60)
    other.heartbeat({})
    assert other.claim(run.state().chunks[0].name)
    worker, stop = worker_of(run), Stop()
    with at_work(worker, stop):
        stop.let_it_look(5)  # all is done but what the other has
        starved_s = worker._meter.reading(worker._committer.meter).starved_s
        stop.let_it_look(10)
        assert worker._meter.reading(worker._committer.meter).starved_s == starved_s
        other.heartbeat({}, ended=True)
    assert len(run.state().done) == 4


def test_commits_that_are_too_slow_are_told(run: SmallRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run.order()
    monkeypatch.setattr("batchwright.working.commits.COMMITS_AT_ONCE", 1)
    worker, stop = worker_of(run), Stop()
    commit, blocked = worker._committer.commit, threading.Event()

    def slow(*args: object, **options: bool) -> bool:
        blocked.wait(0.05)
        return bool(commit(*args, **options))

    monkeypatch.setattr(worker._committer, "commit", slow)
    with at_work(worker, stop):
        pass
    feed = worker_readings(run.storage, "w")[-1].feed
    assert feed is not None
    assert feed.commit_wait_s > 0
