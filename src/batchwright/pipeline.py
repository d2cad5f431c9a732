"""The whole product, top to bottom, one call per stage. Read this first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import yaml

from batchwright.again import order_failed_rows
from batchwright.check import Validation, check_rows
from batchwright.coherence import check_engine
from batchwright.config.job import Job, ResultFormat
from batchwright.core.errors import FAILURE_CODES, InputError, JobError, VerifyError
from batchwright.core.pilot import PilotReport
from batchwright.core.plan import Plan
from batchwright.core.profile import LengthProfile
from batchwright.core.records import OrderBatch
from batchwright.core.stores import LoadCounts
from batchwright.drive import THE_PILOT, Progress, drive
from batchwright.following import following, load_counts
from batchwright.hardware import usable_cores
from batchwright.piloting import pilot_report
from batchwright.planning import own_cards, plan_job
from batchwright.profiling import choose_processes, profile_rows
from batchwright.promise import Promise, with_pilot
from batchwright.responding import responses_of
from batchwright.rundir import layout
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.ledger import read_heartbeat
from batchwright.rundir.manifest import Manifest, existing_run
from batchwright.rundir.rejected import RejectedRows, column_kinds
from batchwright.rundir.state import Counts, RunState
from batchwright.rundir.storage import Storage
from batchwright.settle import mend, open_settled, outputs_of_pilot, replan
from batchwright.survey import survey
from batchwright.write.export import export_results
from batchwright.write.files import check_writable
from batchwright.write.verify import Verification, verify_parts

Watch = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended. Times and `rows_now` are of this start; counts are of the whole run."""

    run_dir: Path
    results: tuple[Path, ...]
    counts: Counts
    wall_s: float
    rows_now: int
    loads: tuple[LoadCounts, ...] = ()

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
            **({"loads": [load.as_json() for load in self.loads]} if self.loads else {}),
        }


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
    run_dir: Path,
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
    run_dir: Path,
) -> tuple[Plan, LengthProfile]:
    """Choose the engine's settings for the job's own rows and cards. No GPU needed."""
    lengths = profile(job, stop, say, sample=sample, cache_tokens=None, run_dir=run_dir)
    chosen = plan_job(job, lengths)
    cache_tokens = chosen.memory.capacity_tokens
    return chosen, replace(lengths, prefix=lengths.prefix.at(cache_tokens))


def pilot(job: Job, run_dir: Path, watch: Watch, stop: threading.Event) -> tuple[PilotReport, Path]:
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
    begun = _read_state(storage)
    if not manifest.pilot_rows or (begun.batches and not begun.pilot):
        raise JobError(
            f"the run in {storage.root} has begun without a pilot",
            "`batchwright status` shows its rate; for a pilot, give another folder (--dir).",
        )
    drive(storage, manifest, job, watch, stop, THE_PILOT)
    state = _read_state(storage)
    counts = state.counts()
    report = pilot_report(
        storage, manifest, job, state, rows_total=counts.rows - counts.rejected, alone=True
    )
    storage.put(layout.PILOT, orjson.dumps(report.as_json(), option=orjson.OPT_INDENT_2))
    report = replace(report, plan_changes=replan(opened, job, own_cards(job), stop))
    storage.put(layout.PILOT, orjson.dumps(report.as_json(), option=orjson.OPT_INDENT_2))
    return report, storage.root


def run(job: Job, run_dir: Path, watch: Watch, stop: threading.Event) -> Summary:
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
    check_writable(_results_dir(storage, job))
    state = _read_state(storage)
    done_before = state.counts().settled if opened.resumed else 0
    promise = Promise(storage, manifest, job, SystemClock())
    if promise.has_budget and manifest.pilot_rows:
        drive(storage, manifest, job, watch, stop, THE_PILOT)
    promise.begin(_read_state(storage))
    with following(storage, manifest, job) as loads:
        drive(storage, manifest, job, watch, stop, judge=promise.look)
        results = finish(storage, manifest, job)
        loaded = loads.wait(stop)
    return _conclude(storage, results, started_at, done_before, loaded)


def retry(run_dir: Path, watch: Watch, stop: threading.Event, codes: Sequence[str] = ()) -> Summary:
    """Run the failed rows of a finished run again; their new outcomes replace the old ones.

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
    mend(storage)
    state = _complete_state(storage)
    again = order_failed_rows(storage, state, job.run.chunk_rows, codes)
    done_before = state.counts().settled - again
    with following(storage, manifest, job) as loads:
        if again:
            drive(storage, manifest, job, watch, stop)
        results = finish(storage, manifest, job)
        loaded = loads.wait(stop)
    return _conclude(storage, results, started_at, done_before, loaded)


def finish(storage: Storage, manifest: Manifest, job: Job) -> list[Path]:
    """Check the counts, remove parts that do not count, write the results."""
    state = _complete_state(storage)
    counts = state.counts()
    if counts.settled != counts.rows:
        raise VerifyError(
            f"{counts.rows} rows in, but {counts.ok} ok + {counts.failed} failed + "
            f"{counts.rejected} rejected = {counts.settled}",
            f"Run `batchwright verify {storage.root}` to see which part is wrong.",
        )
    if counts.rows == 0:
        raise InputError("no rows in the input", "Every file is empty or has only blank lines.")
    _remove_orphans(storage, state)
    out_dir = _results_dir(storage, job)
    return _export(storage, manifest, state, out_dir, job.output.format, job)


def export(run_dir: Path, out_dir: Path | None, output_format: ResultFormat | None) -> list[Path]:
    """Write the results of a finished run again, elsewhere or in another format."""
    storage, manifest, job = open_run(run_dir)
    return _export(
        storage,
        manifest,
        _complete_state(storage),
        out_dir or _results_dir(storage, job),
        output_format or job.output.format,
        job,
    )


def verify(run_dir: Path) -> Verification:
    """Prove from the files alone that every row has exactly one fate."""
    storage, _, _ = open_run(run_dir)
    state = _read_state(storage)
    rejected = RejectedRows(storage, _first_pass(state))
    return verify_parts(
        receipts=list(state.receipts.values()),
        total_rows=state.counts().rows,
        rejected_rows=rejected.numbers(),
        storage=storage,
    )


def status(run_dir: Path) -> tuple[Counts, list[dict[str, Any]], tuple[LoadCounts, ...]]:
    """Counts of a run, the last sign of life of each of its workers, and how far its loads are."""
    storage, _, _ = open_run(run_dir)
    names = [name.removesuffix(".json") for name in storage.names(layout.WORKERS)]
    workers = [{"name": name, **read_heartbeat(storage, name)} for name in names]
    return _read_state(storage).counts(), workers, load_counts(storage)


def open_run(run_dir: Path) -> tuple[Storage, Manifest, Job]:
    """A run that is there already. Raises JobError if there is none."""
    storage, manifest = existing_run(run_dir)
    return storage, manifest, Job.model_validate(manifest.job)


def _export(
    storage: Storage,
    manifest: Manifest,
    state: RunState,
    out_dir: Path,
    output_format: ResultFormat,
    job: Job,
) -> list[Path]:
    batches = _first_pass(state)
    parts = list(state.receipts.values())
    return export_results(
        parts=parts,
        rejected=RejectedRows(storage, batches),
        storage=storage,
        out_dir=out_dir,
        format=output_format,
        input_type=manifest.arrow_input_type(),
        column_kinds=column_kinds(storage, batches),
        columns=job.output.columns,
        target_file_bytes=job.output.target_file_mb << 20,
        total_rows=state.counts().rows,
        task=Job.model_validate(manifest.job).task_settings(),
        responses=responses_of(manifest, job, parts, output_format),
    )


def _results_dir(storage: Storage, job: Job) -> Path:
    return Path(job.output.path) if job.output.path else storage.root / layout.RESULTS


def _conclude(
    storage: Storage,
    results: Sequence[Path],
    started_at: float,
    done_before: int,
    loads: tuple[LoadCounts, ...],
) -> Summary:
    counts = _read_state(storage).counts()
    wall_s = time.monotonic() - started_at
    now = counts.settled - done_before
    summary = Summary(storage.root, tuple(results), counts, wall_s, now, loads)
    storage.put(layout.SUMMARY, orjson.dumps(summary.as_json(), option=orjson.OPT_INDENT_2))
    storage.put(layout.SUCCESS, b"")
    return summary


def _read_state(storage: Storage) -> RunState:
    state = RunState(storage)
    state.refresh_order()
    state.refresh_receipts()
    return state


def _complete_state(storage: Storage) -> RunState:
    state = _read_state(storage)
    counts = state.counts()
    if not counts.complete:
        raise JobError(
            f"{storage.root} is not finished: {counts.chunks_done} of {counts.chunks} chunks are committed",
            "Run `batchwright run` with the same job first: it goes on where it stopped.",
        )
    return state


def _first_pass(state: RunState) -> list[OrderBatch]:
    return [batch for batch in state.batches if batch.generation == 0]


def _remove_orphans(storage: Storage, state: RunState) -> None:
    """Parts that no receipt names: their worker died before it could commit, or came second."""
    named = {receipt.file for receipt in state.receipts.values()}
    for name in storage.names(layout.OUTPUT):
        path = f"{layout.OUTPUT}/{name}"
        if path not in named:
            storage.delete(path)
