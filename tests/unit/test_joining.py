"""Workers without a leader: who creates the run, who counts, who writes the results."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchwright import deliver as whole
from batchwright.config.job import Job
from batchwright.core.errors import JobError, ResumeRefused, Stopped, TooManyFailures
from batchwright.deliver import deliver, in_charge, write_results
from batchwright.joining import open_run, work
from batchwright.ordering.retry import order_failed_rows
from batchwright.rundir import artifacts, layout
from batchwright.rundir.ledger import Ledger, Roster
from batchwright.rundir.state import RunState, read_state
from batchwright.rundir.storage import Storage
from batchwright.rundir.waste import NOTHING_WASTED, Waste, wasted, with_counted
from batchwright.running.drive import Progress
from batchwright.running.overseeing import Overseer
from tests.unit.metrics.samples import PROGRESS
from tests.unit.rundir.small_runs import (
    ManualClock,
    SmallRun,
    prompts,
    small_job,
    small_run,
    write_rows,
)
from tests.unit.rundir.test_state import receipt_of


def never(_progress: Progress) -> None:
    return


@pytest.fixture
def job(tmp_path: Path) -> Job:
    write_rows(tmp_path / "data" / "rows.jsonl", prompts(20))
    return small_job(tmp_path / "data", run__chunk_rows=5, run__dir=str(tmp_path / "run"))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that one worker did from its job file to its results."""
    folder = tmp_path_factory.mktemp("done")
    write_rows(folder / "data" / "rows.jsonl", prompts(20))
    job = small_job(folder / "data", run__chunk_rows=5)
    ended = work(folder / "run", job, "w", never, threading.Event())
    assert (ended.counts.complete, ended.counts.ok) == (True, 20)
    assert ended.summary is not None
    assert ended.summary.results
    return folder / "run"


def test_one_worker_does_it_all(done: Path) -> None:
    storage = Storage(done)
    assert storage.read_if_there(layout.SUCCESS) == b""
    assert orjson.loads(storage.read(layout.SUMMARY))["ok"] == 20
    _, manifest = open_run(done, None, "x", threading.Event())
    job = Job.model_validate(manifest.job)
    assert deliver(storage, manifest, job, "v", threading.Event()) is None, "they are there"


def test_a_run_is_joined_as_it_is(job: Job, tmp_path: Path) -> None:
    _, first = open_run(tmp_path / "run", job, "a", threading.Event())
    _, second = open_run(tmp_path / "run", job, "b", threading.Event())
    assert first == second
    assert Storage(tmp_path / "run").names(layout.CLAIMS) == ["create.0"]


def test_a_changed_job_file_is_taken_up_or_refused(job: Job, tmp_path: Path) -> None:
    open_run(tmp_path / "run", job, "a", threading.Event())
    faster = job.model_copy(update={"run": job.run.model_copy(update={"grace_s": 3.0})})
    _, manifest = open_run(tmp_path / "run", faster, "b", threading.Event())
    assert manifest.job["run"]["grace_s"] == 3.0
    longer = job.sampling.model_copy(update={"max_tokens": 9})
    other = job.model_copy(update={"sampling": longer})
    with pytest.raises(ResumeRefused, match="max_tokens"):
        open_run(tmp_path / "run", other, "c", threading.Event())


def test_only_one_looks_at_the_input(job: Job, tmp_path: Path) -> None:
    """A hundred pods that start together must not list and sniff a bucket a hundred times."""
    storage = Storage(tmp_path / "run")
    other = Ledger(storage, "other", ManualClock(), 60)
    other.heartbeat({})
    assert other.claim(layout.CREATE_UNIT)
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped, match="before the run was created"):
        open_run(tmp_path / "run", job, "me", stop)
    other.heartbeat({}, ended=True)
    storage, _ = open_run(tmp_path / "run", job, "me", threading.Event())
    assert storage.names(layout.CLAIMS) == ["create.0", "create.1"]


def test_a_budget_needs_a_pilot(job: Job, tmp_path: Path) -> None:
    careful = job.model_copy(update={"plan": job.plan.model_copy(update={"max_hours": 1.0})})
    with pytest.raises(JobError, match="need a pilot") as caught:
        open_run(tmp_path / "run", careful, "w", threading.Event())
    assert "batchwright pilot" in caught.value.hint


def test_no_run_and_no_job(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="not a run directory"):
        work(tmp_path / "nothing", None, "w", never, threading.Event())
    assert not (tmp_path / "nothing").exists()


@pytest.fixture
def finished(tmp_path: Path, done: Path) -> Storage:
    """A complete run whose results nobody has written."""
    shutil.copytree(done, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / layout.RESULTS)
    (tmp_path / "run" / layout.SUCCESS).unlink()
    return Storage(tmp_path / "run")


def test_results_are_left_to_whoever_is_in_charge(finished: Storage) -> None:
    _, manifest = open_run(finished.root, None, "x", threading.Event())
    job = Job.model_validate(manifest.job)
    with in_charge(finished, job, lambda _progress: None):
        assert deliver(finished, manifest, job, "w", threading.Event()) is None
    assert finished.names(layout.RESULTS) == []
    summary = deliver(finished, manifest, job, "w", threading.Event())
    assert summary is not None, "whoever was in charge has gone"
    assert summary.rows_now == 20
    assert len(finished.names(layout.RESULTS)) == 2


def test_parts_of_a_retry_that_begins_while_the_results_are_written_stay(
    finished: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their receipts came after the ones that were read: without them those rows are lost."""
    _, manifest = open_run(finished.root, None, "x", threading.Event())
    job = Job.model_validate(manifest.job)
    before = read_state(finished)
    chunk = before.chunks[0].name
    orphan = layout.output_part(chunk, "came2nd")
    finished.put(orphan, b"of a worker that came second")
    of_retry = layout.output_part("chunk-1-000000", "0new")

    def retry_begins(storage: Storage) -> RunState:
        state = read_state(storage)
        storage.put(of_retry, b"whose receipt is about to come")
        return state

    monkeypatch.setattr(whole, "complete_state", retry_begins)
    write_results(finished, manifest, job)
    assert finished.read_if_there(orphan) is None
    assert finished.read_if_there(of_retry) is not None
    for receipt in before.receipts.values():
        assert finished.read_if_there(receipt.file) is not None


def test_a_run_whose_retry_has_begun_is_not_called_finished(finished: Storage) -> None:
    """The process that wrote the results of before comes to its end after that."""
    mark_failed(finished, 3)
    assert order_failed_rows(finished, read_state(finished), None, []) == 1
    whole.conclude(finished, [], 1.0, 20)
    assert finished.read_if_there(layout.SUCCESS) is None


def mark_failed(storage: Storage, row: int) -> None:
    """As if the row had failed."""
    receipt = next(iter(read_state(storage).receipts.values()))
    table = pq.read_table(pa.BufferReader(storage.read(receipt.file)))
    rows = table.to_pylist()
    for one in rows:
        if one["row"] == row:
            one |= {"status": "failed", "error_code": "aborted", "error": "on request"}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, table.schema), sink)
    storage.put(receipt.file, sink.getvalue().to_pybytes())
    failed = replace(receipt, ok=receipt.ok - 1, failed=1, failures={"aborted": 1})
    name = f"chunk-{receipt.generation}-{receipt.chunk:06d}"
    storage.put(layout.receipt(name), artifacts.dump(failed))


def test_whoever_is_in_charge_tells_what_it_waits_for(finished: Storage) -> None:
    _, manifest = open_run(finished.root, None, "x", threading.Event())
    job = Job.model_validate(manifest.job)
    job = job.model_copy(update={"run": job.run.model_copy(update={"lease_s": 0.1})})
    seen: list[Progress] = []
    with in_charge(finished, job, seen.append) as (_, tell):
        tell(replace(PROGRESS, phase="waiting for 2 engines"))
        deadline = time.monotonic() + 10
        while "waiting for 2 engines" not in phases(finished) and time.monotonic() < deadline:
            threading.Event().wait(0.02)
        assert "waiting for 2 engines" in phases(finished)
    assert [one.phase for one in seen] == ["waiting for 2 engines"]


def phases(storage: Storage) -> list[str]:
    return [one.get("phase", "") for one in Roster(storage).read().values()]


def watched(seen: list[Progress]) -> Callable[[Progress], None]:
    return seen.append


def overseer(run: SmallRun, name: str, seen: list[Progress], stop: threading.Event) -> Overseer:
    Ledger(run.storage, name, ManualClock(), 60).heartbeat({})
    return Overseer(run.storage, run.manifest, run.job, name, ManualClock(), watched(seen), stop)


def test_one_counts_and_the_others_read_what_it_found(tmp_path: Path) -> None:
    run = small_run(tmp_path, prompts(6))
    run.prepare()
    run.order()
    first: list[Progress] = []
    second: list[Progress] = []
    leads = overseer(run, "a", first, threading.Event())
    follows = overseer(run, "b", second, threading.Event())
    heir = overseer(run, "c", [], threading.Event())
    leads.look()
    follows.look()
    assert first == second
    assert first[0].counts.rows == 6
    Ledger(run.storage, "a", ManualClock(), 60).heartbeat({}, ended=True)
    heir.look()
    heir.look()
    assert run.storage.names(layout.CLAIMS) == ["oversee.0", "oversee.1"]


def test_a_job_that_is_all_wrong_stops_every_worker(tmp_path: Path) -> None:
    run = small_run(tmp_path, [*["{bad"] * 150, *prompts(3)])
    run.prepare()
    run.order()
    leads = overseer(run, "a", [], threading.Event())
    follows = overseer(run, "b", [], threading.Event())
    with pytest.raises(TooManyFailures, match="150 of the first 153 rows are rejected"):
        leads.look()
    with pytest.raises(TooManyFailures, match="150 of the first 153 rows are rejected"):
        follows.look()
    late = overseer(run, "c", [], threading.Event())
    late.look()
    assert late.error is None, "an old verdict is not held against a new start"


def test_the_thread_stops_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchwright.running.overseeing.LOOK_EVERY_S", 0.01)
    run = small_run(tmp_path, [*["{bad"] * 150, *prompts(3)])
    run.prepare()
    run.order()
    stop = threading.Event()
    with overseer(run, "a", [], stop) as watcher:
        assert stop.wait(10)
    assert isinstance(watcher.error, TooManyFailures)


def test_waste_is_what_was_computed_and_is_in_no_receipt() -> None:
    receipts = [replace(receipt_of(number, 10, {}), worker="a") for number in (0, 1)]
    workers = {
        "a": {"rows": 23, "in_flight": 0, "completion_tokens": 115, "ended": True},
        "killed": {"rows": 5, "in_flight": 2, "completion_tokens": 30},
        "prepare": {},
    }
    counted = with_counted(workers, receipts)
    assert counted["a"]["rows_counted"] == 20
    assert wasted(counted.values(), complete=True) == Waste(rows=10, tokens=45)
    assert wasted(counted.values(), complete=False) == Waste(rows=3, tokens=15)
    assert wasted([], complete=True) == NOTHING_WASTED


def test_the_first_open_chunk_spares_listings(finished: Storage) -> None:
    state = read_state(finished)
    assert state.first_open == state.chunks[-1].name
    assert state.refresh_receipts() == []


def test_each_worker_knows_that_too_many_rows_have_no_answer(tmp_path: Path) -> None:
    rows = [*prompts(18), {"id": "a"}, {"id": "b"}]
    write_rows(tmp_path / "data" / "rows.jsonl", rows)
    job = small_job(tmp_path / "data", run__max_failed=0.05)
    ended = [work(tmp_path / "run", job, name, never, threading.Event()) for name in "vw"]
    assert [one.summary is None for one in ended] == [False, True]
    assert [one.many_failed for one in ended] == [True, True]
    lenient = small_job(tmp_path / "data", run__max_failed=0.1)
    assert not work(tmp_path / "run", lenient, "x", never, threading.Event()).many_failed
