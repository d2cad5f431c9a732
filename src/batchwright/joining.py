"""A worker that needs nobody else: it creates or joins a run, works until all is done, and ends it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import yaml

from batchwright.config.job import Job
from batchwright.core.errors import JobError, Stopped
from batchwright.deliver import Summary, check_writable, deliver, results_dir
from batchwright.equip.coherence import check_engine
from batchwright.foresight.planning import own_cards
from batchwright.foresight.settle import open_settled
from batchwright.foresight.survey import survey
from batchwright.results.following import load_rest
from batchwright.rundir import layout
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.heartbeat import Heartbeat
from batchwright.rundir.ledger import Ledger
from batchwright.rundir.locations import Location
from batchwright.rundir.manifest import Manifest, existing_run, run_if_there
from batchwright.rundir.state import Counts, read_state
from batchwright.rundir.storage import Storage
from batchwright.running.drive import Watch
from batchwright.running.overseeing import Overseer
from batchwright.running.roles import attend

LOOK_AGAIN_S = 0.5


@dataclass(frozen=True, slots=True)
class Attended:
    """A run that a worker has seen to its end.

    Attributes:
        counts: of the whole run.
        summary: how it ended, if this worker wrote the results.
        many_failed: whether more rows are without an answer than `run.max_failed` allows. Every worker
            says so: the one that wrote the results may not live to do it.
    """

    counts: Counts
    summary: Summary | None
    many_failed: bool


def work(
    run_dir: Location,
    job: Job | None,
    name: str,
    watch: Watch,
    stop: threading.Event,
) -> Attended:
    """Do all that a run needs, together with any number of others who do the same.

    Args:
        run_dir: of the run.
        job: the job that it must be of, and is created from if it is not there; None takes the run
            as it is.
        name: of this worker, which nobody else may have.
        watch: told now and then how far the run is.
        stop: set from elsewhere (SIGTERM, Ctrl-C) to end early but cleanly.

    Raises:
        Stopped: `stop` was set.
        TooManyFailures: see `run.stop_at_failed`.
        BatchwrightError: what this worker could not go on with; others may.
    """
    storage, manifest = open_run(run_dir, job, name, stop)
    running = Job.model_validate(manifest.job)
    with Overseer(storage, manifest, running, name, SystemClock(), watch, stop) as overseer:
        try:
            attend(storage.place, "both", name, stop)
        except Stopped as stopped:
            raise overseer.error or stopped from None
    summary = deliver(storage, manifest, running, name, stop)
    load_rest(storage, manifest, running, stop)
    counts = read_state(storage).counts()
    return Attended(counts, summary, counts.share_without_answer > running.run.max_failed)


def open_run(
    run_dir: Location, job: Job | None, name: str, stop: threading.Event
) -> tuple[Storage, Manifest]:
    """The run, created if it is not there yet.

    Raises:
        JobError: there is no run and no job; or the job cannot be run.
        ResumeRefused: the run is of another job.
        Stopped: `stop` was set.
    """
    if job is None:
        return existing_run(run_dir)
    found = run_if_there(run_dir)
    if found is not None and found[1].job == job.model_dump(mode="json"):
        return found
    storage = Storage(run_dir)
    ledger = Ledger(storage, f"{name}-create", SystemClock(), job.run.lease_s)
    with Heartbeat(ledger, _creates, job.run.lease_s):
        ledger.refresh()
        # To look at the input takes many requests: one does it, the others wait.
        while not ledger.claim(layout.CREATE_UNIT):
            if stop.wait(storage.seldom(LOOK_AGAIN_S)):
                raise Stopped("stopped before the run was created")
            there = run_if_there(run_dir)
            if there is not None and found is None:
                return open_run(run_dir, job, name, stop)
        return _create(storage, job, stop)


def _creates() -> dict[str, Any]:
    return {"role": "create", "phase": "looking at the input"}


def _create(storage: Storage, job: Job, stop: threading.Event) -> tuple[Storage, Manifest]:
    """The run with this job's settings; what it may not change is checked."""
    check_engine(job)
    budget = job.plan.max_hours is not None or job.plan.max_usd is not None
    if budget and storage.read_if_there(layout.MANIFEST) is None:
        raise JobError(
            "plan.max_hours and plan.max_usd need a pilot, which workers alone do not make",
            "Run `batchwright pilot` with this job file first: the workers go on from it.",
        )
    opened = open_settled(storage.place, survey(job), job, own_cards(job), stop)
    storage.put(layout.JOB, yaml.safe_dump(opened.manifest.job, sort_keys=False).encode())
    check_writable(results_dir(storage, job))
    return storage, opened.manifest
