"""The whole product, top to bottom, one call per stage. Read this first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import yaml

from batchwright.config.job import Job
from batchwright.config.load import make_job
from batchwright.core.errors import FAILURE_CODES, JobError
from batchwright.core.pilot import PilotReport
from batchwright.core.plan import Plan
from batchwright.core.profile import LengthProfile
from batchwright.core.report import ReportFacts
from batchwright.core.stores import LoadCounts
from batchwright.deliver import (
    Summary,
    check_writable,
    complete_state,
    conclude,
    finish,
    in_charge,
    results_dir,
)
from batchwright.diagnose.verdict import Diagnosis
from batchwright.diagnose.verdict import diagnose as judge_evidence
from batchwright.equip.coherence import check_engine
from batchwright.foresight.check import Validation, check_rows
from batchwright.foresight.piloting import pilot_report
from batchwright.foresight.planning import own_cards, plan_job
from batchwright.foresight.profiling import choose_processes, profile_rows
from batchwright.foresight.promise import Promise, with_pilot
from batchwright.foresight.settle import open_settled, outputs_of_pilot, replan
from batchwright.foresight.survey import survey
from batchwright.machine.hardware import usable_cores
from batchwright.ordering.retry import order_failed_rows
from batchwright.results.exporting import export_run, first_pass
from batchwright.results.following import following
from batchwright.rundir import layout
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.locations import Location
from batchwright.rundir.manifest import Manifest, existing_run
from batchwright.rundir.rejected import RejectedRows
from batchwright.rundir.state import read_state, unfinished
from batchwright.rundir.storage import Storage
from batchwright.running.drive import THE_PILOT, Watch, drive
from batchwright.running.mending import mend
from batchwright.views.diagnosis_facts import gather
from batchwright.views.looking import Standing, read_standing
from batchwright.views.report import write_report
from batchwright.write.verify import Verification, verify_parts


def validate(job: Job, stop: threading.Event, say: Callable[[Validation], None]) -> Validation:
    """Check every row without an engine and without a run directory."""
    manifest = survey(job)
    return check_rows(manifest, Job.model_validate(manifest.job), stop, say)


def profile(
    job: Job,
    stop: threading.Event,
    say: Callable[[int], None],
    *,
    sample: float | None,
    cache_tokens: int | None,
    run_dir: Location,
) -> LengthProfile:
    """Measure how long the work is: token lengths, duplicates, shared prefixes. No engine.

    Where a pilot of the job has left its figures in `run_dir`, the lengths of its answers too.
    """
    if job.task == "score":
        raise JobError("there is no profile for task: score: a row has several texts")
    manifest = survey(job)
    lengths = profile_rows(
        manifest,
        job,
        sample=sample,
        cache_tokens=cache_tokens,
        processes=choose_processes(job, len(manifest.splits), usable_cores()),
        say=say,
        stop=stop,
    )
    return replace(lengths, outputs=outputs_of_pilot(run_dir, manifest))


def plan(
    job: Job,
    stop: threading.Event,
    say: Callable[[int], None],
    *,
    sample: float | None,
    run_dir: Location,
) -> tuple[Plan, LengthProfile]:
    """Choose the engine's settings for the job's own rows and cards. No GPU needed."""
    lengths = profile(job, stop, say, sample=sample, cache_tokens=None, run_dir=run_dir)
    chosen = plan_job(job, lengths)
    cache_tokens = chosen.memory.capacity_tokens
    return chosen, replace(lengths, prefix=lengths.prefix.at(cache_tokens))


def pilot(
    job: Job, run_dir: Location, watch: Watch, stop: threading.Event
) -> tuple[PilotReport, Location]:
    """Run a sample of the rows on the real engine and say what the whole job will take.

    The sample is stratified by prompt length; its answers count: `run` goes on from them.

    Raises:
        JobError: the run has begun without a pilot.
    """
    check_engine(job)
    if job.task != "generate":
        raise JobError(f"there is no pilot for task: {job.task} yet")
    if not job.run.pilot_rows:
        raise JobError("run.pilot_rows is 0", "Give the pilot some rows: --rows 1000.")
    wanted = replace(survey(job), pilot_rows=job.run.pilot_rows)
    opened = open_settled(run_dir, wanted, job, own_cards(job), stop)
    storage, manifest = opened.storage, opened.manifest
    begun = read_state(storage)
    if not manifest.pilot_rows or (begun.batches and not begun.pilot):
        raise JobError(
            f"the run in {storage.location} has begun without a pilot",
            "`batchwright status` shows its rate; for a pilot, give another folder (--dir).",
        )
    drive(storage, manifest, job, watch, stop, THE_PILOT)
    state = read_state(storage)
    counts = state.counts()
    report = pilot_report(
        storage, manifest, job, state, rows_total=counts.rows - counts.rejected, alone=True
    )
    storage.put(layout.PILOT, orjson.dumps(report.as_json(), option=orjson.OPT_INDENT_2))
    report = replace(report, plan_changes=replan(opened, job, own_cards(job), stop))
    storage.put(layout.PILOT, orjson.dumps(report.as_json(), option=orjson.OPT_INDENT_2))
    return report, storage.place


def run(job: Job, run_dir: Location, watch: Watch, stop: threading.Event) -> Summary:
    """Run a job to its end, or go on with it where it stopped.

    A job that is worth it begins with a pilot, and is told its hours when that is done.

    Args:
        job: the resolved job.
        run_dir: folder that holds, or will hold, all that the run leaves.
        watch: called a few times a second with the state of the run.
        stop: set from elsewhere (SIGTERM, Ctrl-C) to end early but cleanly.

    Raises:
        BatchwrightError: see `core.errors` for each case and its exit code.
    """
    started_at = time.monotonic()
    check_engine(job)
    opened = open_settled(run_dir, with_pilot(survey(job)), job, own_cards(job), stop)
    storage, manifest = opened.storage, opened.manifest
    storage.put(layout.JOB, yaml.safe_dump(manifest.job, sort_keys=False).encode())
    check_writable(results_dir(storage, job))
    state = read_state(storage)
    done_before = state.counts().done if opened.resumed else 0
    promise = Promise(storage, manifest, job, SystemClock())
    with in_charge(storage, job, watch) as (ledger, tell):
        if promise.has_budget and manifest.pilot_rows:
            drive(storage, manifest, job, tell, stop, THE_PILOT)
        promise.begin(read_state(storage))
        with following(storage, manifest, job) as loads:
            drive(storage, manifest, job, tell, stop, judge=promise.look)
            results = finish(storage, manifest, job, ledger, stop)
            loaded = loads.wait(stop)
        return _conclude(storage, results, started_at, done_before, loaded)


def retry(
    run_dir: Location, watch: Watch, stop: threading.Event, codes: Sequence[str] = ()
) -> Summary:
    """Run the failed rows of a finished run again; their new outcomes replace the old ones.

    A retry that was stopped goes on with the rows that it had chosen.

    Args:
        run_dir: the finished run.
        watch: called a few times a second with the state of the run.
        stop: set from elsewhere to end early but cleanly.
        codes: only rows that failed with one of these codes; all if empty.
    """
    started_at = time.monotonic()
    storage, manifest, job = open_run(run_dir)
    for code in codes:
        if code not in FAILURE_CODES:
            raise JobError(f"--code {code}: there are {', '.join(FAILURE_CODES)}")
    mend(storage, manifest, job)
    state = read_state(storage)
    if state.is_retried and not state.counts().complete:  # a retry that was stopped goes on
        again = state.counts().reopened
    else:
        again = order_failed_rows(storage, complete_state(storage), job.run.chunk_rows, codes)
    done_before = read_state(storage).counts().done
    with (
        in_charge(storage, job, watch) as (ledger, tell),
        following(storage, manifest, job) as loads,
    ):
        if again:
            drive(storage, manifest, job, tell, stop)
        results = finish(storage, manifest, job, ledger, stop)
        loaded = loads.wait(stop)
        return _conclude(storage, results, started_at, done_before, loaded)


def export(
    run_dir: Location, options: Mapping[str, Any], say: Callable[[int], None]
) -> list[Location]:
    """Write the results of a finished run again, elsewhere or in another form.

    Args:
        run_dir: the run.
        options: keys of the job's section `output` to their values, in place of the job's own.
        say: told how many rows are written.
    """
    storage, manifest, _ = open_run(run_dir)
    job = make_job(deepcopy(manifest.job), options)
    state = complete_state(storage)
    return export_run(storage, manifest, state, results_dir(storage, job), job, say)


def verify(run_dir: Location) -> Verification:
    """Prove from the files alone that every row has exactly one fate."""
    storage, _, _ = open_run(run_dir)
    is_finished = storage.read_if_there(layout.SUCCESS) is not None  # asked first: see `looking`
    state = read_state(storage)
    counts = state.counts()
    rejected = RejectedRows(storage, first_pass(state))
    return verify_parts(
        receipts=list(state.receipts.values()),
        total_rows=counts.rows,
        rejected_rows=rejected.numbers(),
        storage=storage,
        unfinished=unfinished(counts, is_finished=is_finished),
    )


def status(run_dir: Location) -> Standing:
    """Counts of a run, the last sign of life of each of its workers, and how far its loads are."""
    storage, _, job = open_run(run_dir)
    return read_standing(storage, job)


def diagnose(run_dir: Location) -> Diagnosis:
    """Say why a run is slow or broken, from what it left; it may still be running."""
    return judge_evidence(gather(*open_run(run_dir)))


def report(run_dir: Location, page: Path | None = None) -> tuple[ReportFacts, Location]:
    """Write the report of a run, finished or not, as one HTML page.

    Args:
        run_dir: the run.
        page: file to write; `report.html` in the run directory unless given.

    Returns:
        What the page tells, and where it is.
    """
    return write_report(*open_run(run_dir), page)


def open_run(run_dir: Location) -> tuple[Storage, Manifest, Job]:
    """A run that is there already. Raises JobError if there is none."""
    storage, manifest = existing_run(run_dir)
    return storage, manifest, Job.model_validate(manifest.job)


def _conclude(
    storage: Storage,
    results: Sequence[Location],
    started_at: float,
    done_before: int,
    loads: tuple[LoadCounts, ...],
) -> Summary:
    rows_now = read_state(storage).counts().done - done_before
    return conclude(storage, results, time.monotonic() - started_at, rows_now, loads)
