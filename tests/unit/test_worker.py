from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchwright.core.errors import EngineError, EngineNeverStarts, Stopped, StorageError
from batchwright.core.outcomes import Outcome
from batchwright.core.ports import EngineInfo, EngineSettings
from batchwright.core.records import Request
from batchwright.engines.fake import FakeEngine
from batchwright.engines.feeder import Supervisor
from batchwright.ordering.retry import order_failed_rows
from batchwright.rundir import layout
from batchwright.rundir.heartbeat import Heartbeat
from batchwright.rundir.ledger import read_heartbeat
from batchwright.rundir.prepared import make_requests, read_slices, with_row_ids
from batchwright.rundir.storage import Storage
from batchwright.worker import Worker
from batchwright.working.finishing import answer_token_ids
from batchwright.working.starting import FAILED, MOST_FAILED_STARTS, STARTED, is_hopeless
from tests.unit.rundir.small_runs import ManualClock, Row, SmallRun, prompts, small_run
from tests.unit.rundir.test_state import put_receipt, receipt_of

ROWS = 10


class TickingClock(ManualClock):
    """Every look at it takes a third of a second."""

    def monotonic(self) -> float:
        self.seconds += 0.3
        return self.seconds


class WatchedEngine(FakeEngine):
    """Calls `on_step` before each step, and notes what becomes of it."""

    def __init__(self, on_step: Callable[[int], Any] | None = None) -> None:
        super().__init__()
        self.on_step = on_step
        self.on_preload: Callable[[], Any] = lambda: None
        self.starts = self.stops = self.steps = self.preloads = 0

    def preload(self, settings: EngineSettings) -> None:
        self.preloads += 1
        self.on_preload()

    def start(self, settings: EngineSettings) -> EngineInfo:
        self.starts += 1
        return super().start(settings)

    def step(self, timeout_s: float) -> list[Outcome]:
        self.steps += 1
        if self.on_step is not None:
            self.on_step(self.steps)
        return super().step(0.0)

    def stop(self) -> None:
        self.stops += 1
        super().stop()


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    run = small_run(tmp_path, prompts(ROWS), run__chunk_rows=4)
    run.prepare()
    run.order()
    return run


def worker_of(
    run: SmallRun, engine: FakeEngine | None = None, name: str = "w", **options: Any
) -> Worker:
    settings = EngineSettings("fake", "", max_num_seqs=2, max_model_len=8192, options=options)
    clock = TickingClock()
    supervisor = Supervisor(
        lambda: engine or FakeEngine(), settings, monotonic=lambda: clock.seconds
    )
    return Worker(run.storage, run.job, name, clock, supervisor, run.tokenizer)


def work(run: SmallRun, engine: FakeEngine | None = None, name: str = "w", **options: Any) -> None:
    worker_of(run, engine, name, **options).run(threading.Event())


def parts(run: SmallRun) -> dict[int, dict[str, Any]]:
    """Row number to the row of its committed part."""
    rows = [
        row
        for receipt in run.state().receipts.values()
        for row in pq.read_table(io.BytesIO(run.storage.read(receipt.file))).to_pylist()
    ]
    assert len({row["row"] for row in rows}) == len(rows)
    return {row["row"]: row for row in rows}


class CountingEngine(WatchedEngine):
    """Notes the rows that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def submit(self, requests: Sequence[Request]) -> None:
        self.rows += [request.row for request in requests]
        super().submit(requests)


def repeating_run(tmp_path: Path, **settings: Any) -> SmallRun:
    """Twelve rows with four prompts, in chunks of eight."""
    rows: list[Row] = [{"id": f"r{n}", "prompt": f"prompt {n % 4}"} for n in range(12)]
    run = small_run(tmp_path, rows, run__chunk_rows=8, **settings)
    run.prepare()
    run.order()
    return run


def test_rows_that_repeat_run_once_in_their_chunk(tmp_path: Path) -> None:
    run = repeating_run(tmp_path, run__repeat_once=True)
    engine = CountingEngine()
    work(run, engine)
    assert engine.rows == [0, 1, 2, 3, 8, 9, 10, 11]
    found = parts(run)
    assert sorted(found) == list(range(12))
    assert {row["text"] for row in found.values()} == {found[n]["text"] for n in range(4)}
    assert all(found[n]["text"] == found[n % 4]["text"] for n in range(12))
    assert [found[n]["cached_tokens"] for n in (0, 4, 8)] == [0, len("prompt 0"), 0]
    assert read_heartbeat(run.storage, "w")["uncommitted"] == 0


@pytest.mark.parametrize("settings", [{}, {"run__repeat_once": True, "sampling__temperature": 0.7}])
def test_every_row_runs_unless_asked_or_where_answers_may_differ(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    run = repeating_run(tmp_path, **settings)
    engine = CountingEngine()
    work(run, engine)
    assert sorted(engine.rows) == list(range(12))


def test_a_failure_is_copied_and_a_retry_answers_all(tmp_path: Path) -> None:
    run = repeating_run(tmp_path, run__repeat_once=True)
    work(run, refuse_rows=[1])
    assert [row for row, part in parts(run).items() if part["status"] == "failed"] == [1, 5]
    order_failed_rows(run.storage, run.state(), None, [])
    work(run, name="w2")
    counts = run.state().counts()
    assert (counts.ok, counts.failed, counts.complete) == (12, 0, True)


def test_copies_of_a_row_that_was_not_finished_are_run_later(tmp_path: Path) -> None:
    run = repeating_run(tmp_path, run__repeat_once=True)
    stop = threading.Event()
    engine = WatchedEngine(lambda step: stop.set())
    with pytest.raises(Stopped, match="will be run again"):
        worker_of(run, engine, hang_rows=[2], rows_per_step=1).run(stop)
    assert not {2, 6} & set(parts(run))
    work(run, name="again")
    assert sorted(parts(run)) == list(range(12))
    assert run.state().counts().complete


def test_every_chunk_gets_one_part_and_one_receipt(run: SmallRun) -> None:
    work(run)
    state = run.state()
    assert sorted(state.receipts) == ["chunk-0-000000", "chunk-0-000001", "chunk-0-000002"]
    assert len(run.storage.names(layout.OUTPUT)) == 3
    assert state.counts().complete
    assert state.counts().ok == ROWS
    for receipt in state.receipts.values():
        assert hashlib.sha256(run.storage.read(receipt.file)).hexdigest() == receipt.sha256
        assert receipt.worker == "w"
        assert receipt.seconds >= 0


def test_a_part_holds_each_row_with_its_own_answer(run: SmallRun) -> None:
    work(run)
    found = parts(run)
    assert sorted(found) == list(range(ROWS))
    for number, row in found.items():
        assert row["id"] == f"r{number}"
        assert orjson.loads(row["input"])["prompt"] == f"prompt {number}"
        assert row["status"] == "ok"
        assert row["prompt_tokens"] == len(f"prompt {number}")
        assert len(row["text"]) == row["completion_tokens"]
    assert len({row["text"] for row in found.values()}) == ROWS


def test_answers_do_not_depend_on_how_the_work_was_cut(tmp_path: Path, run: SmallRun) -> None:
    work(run)
    other = small_run(tmp_path, tmp_path / "data", run_dir="other", run__chunk_rows=1)
    other.prepare()
    other.order()
    work(other)
    assert {n: row["text"] for n, row in parts(run).items()} == {
        n: row["text"] for n, row in parts(other).items()
    }


def test_rows_without_an_id_are_known_by_their_number(tmp_path: Path) -> None:
    run = small_run(tmp_path, [{"prompt": "a"}, "{bad", {"prompt": "c"}])
    run.prepare()
    run.order()
    work(run)
    assert {row: part["id"] for row, part in parts(run).items()} == {0: "0", 2: "2"}


def test_failed_rows_stand_in_the_part_with_their_reason(run: SmallRun) -> None:
    work(run, refuse_rows=[1], abort_rows=[5, 6])
    found = parts(run)
    assert found[1]["error_code"] == "engine_refused"
    assert found[1]["error"] == "refused on request"
    assert (found[1]["status"], found[1]["text"]) == ("failed", None)
    assert [row for row, part in found.items() if part["status"] == "failed"] == [1, 5, 6]
    counts = run.state().counts()
    assert (counts.ok, counts.failed) == (7, 3)
    assert counts.failures == {"engine_refused": 1, "aborted": 2}


def test_a_failed_row_is_answered_by_a_retry(run: SmallRun) -> None:
    work(run, refuse_rows=[1, 7])
    order_failed_rows(run.storage, run.state(), None, [])
    work(run, name="w2")
    counts = run.state().counts()
    assert (counts.ok, counts.failed, counts.complete) == (ROWS, 0, True)


def test_an_answer_that_is_cut_again_is_one_cut_answer(tmp_path: Path) -> None:
    shape = {"json": {"type": "object"}}
    rows = [{"id": "a", "prompt": "p", "max_tokens": 3, "structured_outputs": shape}]
    run = small_run(tmp_path, rows)
    run.prepare()
    run.order()
    for attempt in range(3):
        work(run, name=f"w{attempt}")
        counts = run.state().counts()
        assert (counts.failures, counts.truncated) == ({"invalid_output": 1}, 1)
        assert counts.again == attempt
        order_failed_rows(run.storage, run.state(), None, [])


def test_the_engine_is_started_once_and_stopped(run: SmallRun) -> None:
    engine = WatchedEngine()
    work(run, engine)
    assert engine.starts == 1
    assert engine.stops >= 1


def test_no_engine_for_a_run_that_has_nothing_left_to_do(run: SmallRun) -> None:
    for number, rows in enumerate([4, 4, 2]):
        put_receipt(run, receipt_of(number, rows, {}))
    engine = WatchedEngine()
    work(run, engine)
    assert engine.starts == 0
    assert read_heartbeat(run.storage, "w")["ended"] is True


def test_no_engine_when_every_row_is_rejected(tmp_path: Path) -> None:
    run = small_run(tmp_path, ["{bad", {"prompt": ""}])
    run.prepare()
    run.order()
    engine = WatchedEngine()
    work(run, engine)
    assert engine.starts == 0


def test_no_engine_for_a_worker_that_is_told_to_stop_before_it_began(run: SmallRun) -> None:
    """Starting one takes minutes, and the grace time is seconds."""
    stop = threading.Event()
    stop.set()
    engine = WatchedEngine()
    with pytest.raises(Stopped):
        worker_of(run, engine).run(stop)
    assert engine.starts == 0


def test_only_what_is_left_is_run(run: SmallRun) -> None:
    put_receipt(run, receipt_of(1, 4, {}))
    worker = worker_of(run)
    worker.run(threading.Event())
    assert run.state().receipts["chunk-0-000001"].worker == "w"
    assert len(run.storage.names(layout.OUTPUT)) == 2


def test_the_loser_of_a_race_for_a_chunk_deletes_its_part(run: SmallRun) -> None:
    def other_is_faster(step: int) -> None:
        if step == 1:
            put_receipt(run, receipt_of(0, 4, {}))

    work(run, WatchedEngine(other_is_faster))
    receipts = run.state().receipts
    assert receipts["chunk-0-000000"].file == "f"
    named = {receipt.file for receipt in receipts.values()}
    assert {f"{layout.OUTPUT}/{name}" for name in run.storage.names(layout.OUTPUT)} == named - {"f"}
    events = [orjson.loads(line) for line in run.storage.read(layout.EVENTS).splitlines()]
    assert [one["chunk"] for one in events if one["event"] == "chunk_was_done_elsewhere"] == [
        "chunk-0-000000"
    ]


def test_two_workers_share_a_run(tmp_path: Path) -> None:
    run = small_run(tmp_path, prompts(60), run__chunk_rows=2)
    run.prepare()
    run.order()
    threads = [threading.Thread(target=work, args=(run, None, f"w{n}")) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(parts(run)) == list(range(60))
    assert len(run.storage.names(layout.OUTPUT)) == 30


def test_a_stop_lets_the_begun_chunks_finish_and_claims_no_more(tmp_path: Path) -> None:
    run = small_run(tmp_path, prompts(80), run__chunk_rows=4, run__grace_s=1000)
    run.prepare()
    run.order()
    stop = threading.Event()
    engine = WatchedEngine(lambda step: stop.set())
    with pytest.raises(Stopped):
        worker_of(run, engine, rows_per_step=1).run(stop)
    done = sorted(parts(run))
    assert done == list(range(len(done)))
    assert 0 < len(done) < 80
    assert len(done) % 4 == 0
    assert read_heartbeat(run.storage, "w")["ended"] is True
    assert engine.stops >= 1
    work(run, name="again")
    assert sorted(parts(run)) == list(range(80))


def test_after_the_grace_time_only_the_unfinished_row_is_dropped(run: SmallRun) -> None:
    stop = threading.Event()
    engine = WatchedEngine(lambda step: stop.set())
    with pytest.raises(Stopped, match="will be run again"):
        worker_of(run, engine, hang_rows=[2], rows_per_step=1).run(stop)
    assert "chunk-0-000000" not in run.state().done
    assert 2 not in parts(run)
    assert 0 in parts(run)
    work(run, name="again")
    assert sorted(parts(run)) == list(range(ROWS))


def test_while_no_row_is_ready_the_engine_loads_what_it_can(tmp_path: Path) -> None:
    run = small_run(tmp_path, prompts(ROWS), run__chunk_rows=4)
    engine, loaded = WatchedEngine(), threading.Event()
    engine.on_preload = loaded.set
    thread = threading.Thread(target=work, args=(run, engine))
    thread.start()
    assert loaded.wait(20)
    assert (engine.preloads, engine.starts) == (1, 0)
    run.prepare()
    while thread.is_alive():
        run.order()
        thread.join(0.05)
    assert (engine.preloads, engine.starts) == (1, 1)
    assert sorted(parts(run)) == list(range(ROWS))


def test_what_was_loaded_in_vain_is_stopped(tmp_path: Path) -> None:
    run = small_run(tmp_path, prompts(3))
    stop = threading.Event()
    engine = WatchedEngine()
    engine.on_preload = stop.set
    with pytest.raises(Stopped, match="before the engine was started"):
        worker_of(run, engine).run(stop)
    assert (engine.preloads, engine.starts, engine.stops) == (1, 0, 1)


def test_a_stop_while_waiting_for_rows(tmp_path: Path) -> None:
    run = small_run(tmp_path, prompts(3))
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped, match="before the engine was started"):
        worker_of(run).run(stop)


def test_a_disk_that_refuses_ends_the_worker_with_that_error(run: SmallRun) -> None:
    run.storage.put(layout.RECEIPTS, b"a file where a folder should be")
    engine = WatchedEngine()
    with pytest.raises(StorageError, match="receipts"):
        work(run, engine)
    assert engine.stops >= 1
    assert read_heartbeat(run.storage, "w")["ended"] is True


def test_a_commit_that_failed_is_not_called_a_clean_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run(tmp_path, prompts(2))
    run.prepare()
    run.order()
    stop = threading.Event()
    stopping = threading.Event()

    def slow_and_in_vain(path: str, data: bytes) -> None:
        stopping.wait(2)
        raise StorageError(f"cannot write {path}")

    class Last(WatchedEngine):
        def stop(self) -> None:
            stopping.set()
            super().stop()

    monkeypatch.setattr(run.storage, "publish", slow_and_in_vain)
    with pytest.raises(StorageError, match="cannot write output/"):
        worker_of(run, Last(lambda step: stop.set())).run(stop)


def test_an_engine_that_does_not_start_ends_the_worker(run: SmallRun) -> None:
    class Broken(FakeEngine):
        def start(self, settings: EngineSettings) -> EngineInfo:
            raise EngineError("no memory")

    with pytest.raises(EngineError, match="no memory"):
        work(run, Broken())
    assert read_heartbeat(run.storage, "w")["ended"] is True
    work(run, name="again")
    assert run.state().counts().complete


def test_an_engine_that_never_starts_is_not_tried_for_ever(run: SmallRun) -> None:
    class Broken(FakeEngine):
        def start(self, settings: EngineSettings) -> EngineInfo:
            raise EngineError("no memory")

    kinds = []
    for number in range(MOST_FAILED_STARTS + 1):
        with pytest.raises(EngineError, match="no memory") as caught:
            work(run, Broken(), name=f"w{number}")
        kinds.append(type(caught.value))
    assert kinds == [EngineError] * (MOST_FAILED_STARTS - 1) + [EngineNeverStarts] * 2
    assert EngineNeverStarts.exit_code == 2, "a cluster takes 75 for something to try again"
    work(run, name="mended")
    assert run.state().counts().complete


def test_an_engine_that_went_well_once_may_fail_as_often_as_it_likes() -> None:
    failed = [{"event": FAILED}] * MOST_FAILED_STARTS
    assert is_hopeless(failed)
    assert not is_hopeless(failed[1:])
    assert not is_hopeless([*failed, {"event": STARTED}])


def test_a_damaged_prepared_part_stops_the_engine(run: SmallRun) -> None:
    (part,) = [name for name in run.storage.names(layout.PREPARED) if name.endswith(".arrow")]
    run.storage.put(f"{layout.PREPARED}/{part}", b"no arrow file")
    engine = WatchedEngine()
    with pytest.raises(StorageError, match=part):
        work(run, engine)
    assert engine.stops >= engine.starts


def test_the_heartbeat_tells_what_is_going_on(run: SmallRun) -> None:
    seen: list[dict[str, Any]] = []
    worker = worker_of(run, WatchedEngine(lambda step: seen.append(worker._state())))
    worker.run(threading.Event())
    assert seen[0]["role"] == "infer"
    assert seen[0]["phase"] == "running"
    assert seen[0]["engine"]["name"] == "fake"
    last = read_heartbeat(run.storage, "w")
    assert last["uncommitted"] == 0
    assert last["completion_tokens"] > 0


class Pulse:
    """A ledger that fails at its second heartbeat."""

    def __init__(self, error: Exception, storage: Storage) -> None:
        self.error = error
        self.storage = storage
        self.beats = 0
        self.went_on = threading.Event()
        self.ended = False

    def heartbeat(self, state: dict[str, Any], *, ended: bool = False) -> None:
        self.beats += 1
        self.ended = ended
        if self.beats == 2:
            raise self.error
        if self.beats > 2 and not ended:
            self.went_on.set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_one_heartbeat_that_fails_is_not_the_last(tmp_path: Path) -> None:
    """A worker that runs on without one loses its claims, and its work is done twice."""
    pulse = Pulse(StorageError("the disk is slow today"), Storage(tmp_path))
    with Heartbeat(pulse, dict, lease_s=0.02):  # type: ignore[arg-type]
        assert pulse.went_on.wait(1)
    assert pulse.ended


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[pa.Table, np.ndarray]:
    """A chunk whose slices begin and end within parts and record batches."""
    monkeypatch.setattr("batchwright.prepare.ROWS_PER_BATCH", 3)
    monkeypatch.setattr("batchwright.prepare.ROWS_PER_PART", 6)
    rows = [{"prompt": chr(97 + i) * (i + 1), "max_tokens": i + 1} for i in range(14)]
    run = small_run(tmp_path, [*rows[:5], "{bad", *rows[5:]], run__chunk_rows=8)
    run.prepare()
    run.order()
    return read_slices(run.storage, run.state().chunks[1].slices)


def test_requests_are_the_prepared_rows(prepared: tuple[pa.Table, np.ndarray]) -> None:
    requests = list(make_requests(*prepared))
    assert [request.row for request in requests] == [9, 10, 11, 12, 13, 14]
    for request in requests:
        place = request.row - 1
        assert bytes(list(request.token_ids)) == bytes([97 + place]) * (place + 1)
        assert request.max_tokens == place + 1
        assert orjson.loads(request.sampling) == {"temperature": 0.0}


def test_missing_ids_become_row_numbers(prepared: tuple[pa.Table, np.ndarray]) -> None:
    table, rows = prepared
    assert with_row_ids(table, rows).column("id").to_pylist() == [str(row) for row in rows]
    own = table.set_column(0, "id", pa.array(list("abcdef"), pa.large_string()))
    assert with_row_ids(own, rows) is own


@pytest.mark.parametrize(
    ("ids", "reason", "sampling", "answer"),
    [
        ([1, 2, 3], "3", "{}", [1, 2]),
        ([1, 2, 3], None, "{}", [1, 2, 3]),
        ([1, 2, 3], "13", "{}", [1, 2, 3]),
        ([1, 2, 3], "3", '{"include_stop_str_in_output":true}', [1, 2, 3]),
        ([], "3", "{}", []),
    ],
)
def test_the_token_that_ended_the_answer_is_no_part_of_it(
    ids: list[int], reason: str | None, sampling: str, answer: list[int]
) -> None:
    assert answer_token_ids(Outcome(0, ids, stop_reason=reason), sampling) == answer
