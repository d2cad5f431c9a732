"""The end of a run: check the counts, write the results, say so; done by one process at a time."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from batchwright.config.job import Job
from batchwright.core.errors import InputError, JobError, Stopped, StorageError, VerifyError
from batchwright.core.stores import LoadCounts
from batchwright.results.exporting import export_run
from batchwright.rundir import layout
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.heartbeat import Heartbeat
from batchwright.rundir.ledger import Ledger, Roster, new_worker_name
from batchwright.rundir.locations import Location, below, is_address, location_of
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.state import Counts, RunState, read_state
from batchwright.rundir.storage import Storage
from batchwright.rundir.waste import NOTHING_WASTED, Waste, wasted, with_counted
from batchwright.running.drive import Progress, Watch
from batchwright.views.report import report_at_the_end

LOOK_AGAIN_S = 0.5


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended. Times and `rows_now` are of this start; counts are of the whole run."""

    run_dir: Location
    results: tuple[Location, ...]
    counts: Counts
    wall_s: float
    rows_now: int
    waste: Waste = NOTHING_WASTED
    loads: tuple[LoadCounts, ...] = ()
    report: Location | None = None

    def as_json(self) -> dict[str, Any]:
        """One flat object, the same names in every command."""
        return {
            "run_dir": str(self.run_dir),
            **self.counts.as_json(),
            "wall_s": round(self.wall_s, 3),
            "rows_per_s": round(self.rows_now / self.wall_s, 3) if self.wall_s else 0.0,
            "rows_before": self.counts.settled - self.rows_now,
            "results": [str(path) for path in self.results],
            "failures": self.counts.failures,
            **self.waste.as_json(),
            **({"loads": [load.as_json() for load in self.loads]} if self.loads else {}),
            **({"report": str(self.report)} if self.report else {}),
        }


@contextmanager
def in_charge(storage: Storage, job: Job, watch: Watch) -> Iterator[tuple[Ledger, Watch]]:
    """Hold the claim on the results while a command drives a run.

    Workers that were started elsewhere then leave the results to it; if it dies, one of them takes
    over. Its heartbeat tells what it waits for, to those who look from elsewhere.

    Args:
        storage: of the run.
        job: the resolved job.
        watch: called with the state of the run.

    Returns:
        The ledger, and what to call in the place of `watch`.
    """
    phase = "driving"

    def tell(progress: Progress) -> None:
        nonlocal phase
        phase = progress.phase
        watch(progress)

    ledger = Ledger(storage, new_worker_name("run"), SystemClock(), job.run.lease_s)
    with Heartbeat(ledger, lambda: {"role": "run", "phase": phase}, job.run.lease_s):
        ledger.refresh()
        ledger.claim(layout.RESULTS_UNIT)
        yield ledger, tell


def finish(
    storage: Storage, manifest: Manifest, job: Job, ledger: Ledger, stop: threading.Event
) -> list[Location]:
    """Write the results of a complete run, when nobody else is writing them.

    Raises:
        Stopped: `stop` was set while another one wrote them.
    """
    ledger.refresh()
    while not (ledger.holds(layout.RESULTS_UNIT) or ledger.claim(layout.RESULTS_UNIT)):
        if stop.wait(storage.seldom(LOOK_AGAIN_S)):
            raise Stopped("stopped while another process was writing the results")
    return write_results(storage, manifest, job)


def deliver(
    storage: Storage, manifest: Manifest, job: Job, name: str, stop: threading.Event
) -> Summary | None:
    """Write the results of a complete run, unless that is done, or somebody else is at it.

    Args:
        storage: of the run.
        manifest: of the run.
        job: the resolved job.
        name: of the worker that has found the run to be complete.
        stop: set it to give up.

    Returns:
        None if there is nothing to do here.
    """
    ledger = Ledger(storage, f"{name}-results", SystemClock(), job.run.lease_s)
    with Heartbeat(ledger, lambda: {"role": "results", "phase": "results"}, job.run.lease_s):
        ledger.refresh()
        while not stop.is_set():
            if storage.read_if_there(layout.SUCCESS) is not None:
                return None
            if ledger.claim(layout.RESULTS_UNIT):
                results = write_results(storage, manifest, job)
                state = read_state(storage)
                return conclude(storage, results, state.busy_s(), state.counts().settled)
            if ledger.holder_lives(layout.RESULTS_UNIT):
                return None
            stop.wait(storage.seldom(LOOK_AGAIN_S))
    raise Stopped("stopped before the results were written", "`batchwright export` writes them.")


def write_results(storage: Storage, manifest: Manifest, job: Job) -> list[Location]:
    """Check the counts, remove parts that do not count, write the results."""
    state = complete_state(storage)
    counts = state.counts()
    if counts.settled != counts.rows:
        raise VerifyError(
            f"{counts.rows} rows in, but {counts.ok} ok + {counts.failed} failed + "
            f"{counts.rejected} rejected = {counts.settled}",
            f"Run `batchwright verify {storage.location}` to see which part is wrong.",
        )
    if counts.rows == 0:
        raise InputError("no rows in the input", "Every file is empty or has only blank lines.")
    _remove_orphans(storage, state)
    out_dir = results_dir(storage, job)
    return export_run(storage, manifest, state, out_dir, job)


def results_dir(storage: Storage, job: Job) -> Location:
    """Where the results go."""
    if job.output.path:
        return location_of(job.output.path)
    return below(storage.place, layout.RESULTS)


def check_writable(folder: Location) -> None:
    """Find out now, not after hours, that the results cannot be written."""
    if is_address(folder):
        place = Storage(folder)
        place.put(".writable", b"")
        place.delete(".writable")
        return
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StorageError(
            f"the results cannot be written to {folder}: {error.strerror}",
            "Choose another folder: -o FOLDER, or output.path in the job file.",
        ) from error


def conclude(
    storage: Storage,
    results: Sequence[Location],
    wall_s: float,
    rows_now: int,
    loads: tuple[LoadCounts, ...] = (),
) -> Summary:
    """Say in the run directory how the run ended, and that it did."""
    state = read_state(storage)
    workers = with_counted(Roster(storage).read(), state.receipts.values())
    waste = wasted(workers.values(), complete=True)
    summary = Summary(storage.place, tuple(results), state.counts(), wall_s, rows_now, waste, loads)
    storage.put(layout.SUMMARY, orjson.dumps(summary.as_json(), option=orjson.OPT_INDENT_2))
    if summary.counts.complete:  # else a retry has begun meanwhile: its end says so
        storage.put(layout.SUCCESS, b"")
    return replace(summary, report=report_at_the_end(storage))


def complete_state(storage: Storage) -> RunState:
    """The same of a run that is complete. Raises JobError if it is not."""
    state = read_state(storage)
    counts = state.counts()
    if not counts.complete:
        raise JobError(
            f"{storage.location} is not finished: {counts.chunks_done} of {counts.chunks} chunks are committed",
            "Run `batchwright run` with the same job first: it goes on where it stopped.",
        )
    return state


def _remove_orphans(storage: Storage, state: RunState) -> None:
    """Parts that no receipt names: their worker died before it could commit, or came second.

    Only those of chunks that are closed: nothing new can come of them. A part of any other chunk is of a
    retry that began after `state` was read, and its receipt may be there by now.
    """
    named = {receipt.file for receipt in state.receipts.values()}
    for name in storage.names(layout.OUTPUT):
        path = f"{layout.OUTPUT}/{name}"
        if path not in named and layout.chunk_of_part(name) in state.done:
            storage.delete(path)
