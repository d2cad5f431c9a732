"""What a pilot measured, from the parts and timings that it left, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from batchwright.config.job import Job
from batchwright.core.errors import JobError, TimesLost
from batchwright.core.pilot import Interval, PilotMeasure, PilotReport, WorkSlice
from batchwright.core.readings import Reading
from batchwright.core.records import Chunk, OrderDecision, Slice
from batchwright.core.workload import LengthHistogram
from batchwright.equip.equipment import (
    engine_settings,
    gpus_per_replica,
    job_tokenizer,
    num_replicas,
)
from batchwright.ordering.pilot_rows import find_groups
from batchwright.pilot.estimate import estimate
from batchwright.pilot.sample import Sample, weigh
from batchwright.pilot.show import in_words
from batchwright.pilot.slices import slices_of_rows
from batchwright.rundir import layout
from batchwright.rundir.decided import read_decision
from batchwright.rundir.manifest import Manifest, block_size
from batchwright.rundir.output_parts import read_output_part
from batchwright.rundir.prepared import ordered_receipt, prompt_lengths, row_numbers
from batchwright.rundir.readings import gpu_of, worker_readings
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage

_COLUMNS = ["row", "status", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens"]


@dataclass(frozen=True, slots=True)
class _Answered:
    """The pilot's rows as the parts and timings know them, in the order in which they were fed."""

    table: pa.Table
    workers: npt.NDArray[np.str_]
    ended: npt.NDArray[np.float64]  # [rows, 2]: seconds and engine steps since the engine was up
    readings: dict[str, npt.NDArray[np.float64]]  # of each worker, [readings, 5]: see Reading
    start_up_s: float
    kv_use: float
    preemptions: int
    gpu_use: float | None
    gpu_memory_bytes: int | None
    accepted_share: float | None

    def column(self, name: str) -> npt.NDArray[np.int64]:
        return np.asarray(self.table.column(name).to_numpy())


def pilot_report(
    storage: Storage,
    manifest: Manifest,
    job: Job,
    state: RunState,
    *,
    rows_total: int,
    alone: bool,
) -> PilotReport:
    """What the finished pilot of a run says of the whole job.

    Args:
        storage: of the run.
        manifest: of the run.
        job: the resolved job.
        state: of the run, the pilot's chunks done.
        rows_total: rows that will run, an estimate while not all are prepared.
        alone: whether the pilot's rows had the engines to themselves; otherwise the run went on
            beside them, and the estimate is of the whole run from its start.

    Raises:
        TimesLost: no time of any row is there.
        JobError: no row of the pilot has an answer.
    """
    rows, lengths = rows_of_pool(storage, state)
    answered = _read_answers(storage, state)
    max_num_seqs = engine_settings(manifest, job, job_tokenizer(job)).max_num_seqs
    measure = _measure(answered, state, rows, job, max_num_seqs)
    if not measure.rows or not measure.slices:
        raise JobError(
            "no row of the pilot has an answer",
            f"Look at {storage.location}/{layout.LOGS} and at the failures: batchwright status RUN.",
        )
    replicas = num_replicas(manifest, job)
    in_pilot = sum(chunk.num_rows for chunk in state.pilot)
    report = estimate(
        measure,
        mean_prompt(storage, state),
        rows_total=rows_total,
        rows_left=rows_total - in_pilot if alone else rows_total,
        sample=_sample(storage, manifest, state, rows, lengths),
        replicas=replicas,
        gpus=_num_gpus(manifest, job),
        usd_per_gpu_hour=job.plan.usd_per_gpu_hour,
        cached_share=cached_share_of_job(read_decision(storage)),
    )
    report = replace(
        report, outputs=output_histogram(measure), accepted_share=answered.accepted_share
    )
    return report if alone else _from_the_start(report, measure)


def _num_gpus(manifest: Manifest, job: Job) -> int:
    """Of all replicas; an endpoint's cards are not ours to count."""
    if job.engine.kind == "openai":
        return 0
    return num_replicas(manifest, job) * gpus_per_replica(manifest, job)


def _from_the_start(report: PilotReport, measure: PilotMeasure) -> PilotReport:
    """The report of a pilot that other rows ran beside: what is left is the time, not the rows."""
    spent = (measure.start_up_s + measure.seconds) / 3600
    low, mid, high = (
        max(0.0, x - spent) for x in (report.hours.low, report.hours.estimate, report.hours.high)
    )
    left = round(report.rows_total * mid / max(1e-9, report.hours.estimate))
    return replace(report, rows_left=left, hours_left=Interval(low, mid, high))


def cached_share_of_job(decision: OrderDecision | None) -> float | None:
    """Share of the prompt tokens that the cache will save, by what was found for the order.

    The pilot's own rows are drawn from all over the input, so few of them share a document.

    Returns:
        None where no order was decided, or the cache is not known: then the pilot's own tells.
    """
    if decision is None or decision.cache_tokens is None:
        return None
    return decision.hit_rate_best if decision.order == "prefix" else decision.hit_rate_file


def output_histogram(measure: PilotMeasure) -> LengthHistogram:
    """Output tokens of the pilot's answers: what a plan after the pilot counts with."""
    return LengthHistogram.of(measure.outputs)


def mean_prompt(storage: Storage, state: RunState) -> float:
    """Prompt tokens of a row, over all rows that are prepared and will run."""
    rows = tokens = 0
    for batch in state.batches:
        for part in batch.parts if batch.generation == 0 else ():
            receipt = ordered_receipt(storage, part)
            rows += receipt.rows - receipt.rejected
            tokens += receipt.prompt_tokens
    return tokens / max(1, rows)


def over_budget(report: PilotReport, max_hours: float | None, max_usd: float | None) -> str | None:
    """How the estimate breaks a budget, in words; None if it keeps them."""
    if max_hours is not None and report.hours.estimate > max_hours:
        hours = report.hours
        return (
            f"the job would take {in_words(hours.estimate)} ({in_words(hours.low)} to "
            f"{in_words(hours.high)}); plan.max_hours is {max_hours:g}"
        )
    if max_usd is not None and report.usd is not None and report.usd.estimate > max_usd:
        usd = report.usd
        return (
            f"the job would cost ${usd.estimate:.2f} (${usd.low:.2f} to ${usd.high:.2f}); "
            f"plan.max_usd is {max_usd:g}"
        )
    return None


def rows_of_pool(
    storage: Storage, state: RunState
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Numbers and prompt tokens of the rows that the pilot was chosen from, in input order."""
    first = state.batches[0]
    chunks: list[Slice] = [one for chunk in first.chunks for one in chunk.slices]
    slices = [*chunks, *first.waiting]
    lengths = prompt_lengths(storage, slices)
    rows = row_numbers(storage, slices)
    order = np.argsort(rows)
    return rows[order], lengths[order]


def _sample(
    storage: Storage,
    manifest: Manifest,
    state: RunState,
    rows: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> Sample:
    """The pilot's rows, of those that they were chosen from, and which of them share a beginning."""
    pieces = [piece for chunk in state.pilot for piece in chunk.slices]
    pieces.sort(key=lambda piece: piece.first_row + piece.start)
    chosen = np.searchsorted(rows, row_numbers(storage, pieces))
    groups = find_groups(storage, pieces, block_size(manifest))
    return weigh(lengths, chosen, manifest.pilot_rows, groups)


def _read_answers(storage: Storage, state: RunState) -> _Answered:
    tables: list[pa.Table] = []
    workers: list[str] = []
    ended: list[list[float]] = []
    readings: dict[str, npt.NDArray[np.float64]] = {}
    start_up_s = 0.0
    for chunk in state.pilot:
        table, timings = _read_chunk(storage, state, chunk)
        worker = timings["worker"]
        tables.append(table)
        workers += [worker] * table.num_rows
        ended += [timings["ended"][str(row)] for row in table.column("row").to_pylist()]
        found = np.asarray(timings["readings"], dtype=np.float64).reshape(-1, 5)
        if len(found) > len(readings.get(worker, ())):  # a later chunk's hold the earlier ones
            readings[worker] = found
        start_up_s = max(start_up_s, timings["start_up_s"])
    if not ended:
        raise TimesLost(
            "the times of the pilot's rows were lost when their worker was killed",
            "Give another folder (--dir) for a pilot, or run without plan.max_hours and max_usd.",
        )
    telemetry = [worker_readings(storage, worker) for worker in readings]
    gpu_use, gpu_memory_bytes = gpu_of(one for mine in telemetry for one in mine)
    return _Answered(
        table=pa.concat_tables(tables),
        workers=np.array(workers),
        ended=np.array(ended),
        readings=readings,
        start_up_s=start_up_s,
        kv_use=max((one.kv_peak for mine in telemetry for one in mine), default=0.0),
        preemptions=sum(preemptions(mine) for mine in telemetry),
        gpu_use=gpu_use,
        gpu_memory_bytes=gpu_memory_bytes,
        accepted_share=accepted_share(telemetry),
    )


def accepted_share(telemetry: Iterable[Sequence[Reading]]) -> float | None:
    """Share of the proposed tokens that the model accepted; None without speculative decoding.

    Args:
        telemetry: the readings of each worker; the counters of its last engine count.
    """
    engines = [[one.engine for one in mine if one.engine is not None] for mine in telemetry]
    last = [mine[-1] for mine in engines if mine]
    drafted = sum(engine.drafted_tokens for engine in last)
    return sum(engine.accepted_tokens for engine in last) / drafted if drafted else None


def preemptions(readings: Sequence[Reading]) -> int:
    """Rows that a worker's engine threw out of a full cache; of several engines, the most."""
    return max((one.engine.preemptions for one in readings if one.engine), default=0)


def _read_chunk(storage: Storage, state: RunState, chunk: Chunk) -> tuple[pa.Table, dict[str, Any]]:
    """The chunk's rows that have a time, and the times."""
    timings = orjson.loads(storage.read(layout.timings(chunk.name)))
    mine = (chunk.generation, chunk.number)
    table = pa.concat_tables(
        read_output_part(storage, one.file, _COLUMNS)
        for one in state.receipts.values()
        if (one.generation, one.chunk) == mine
    )
    timed = pa.array([str(row) in timings["ended"] for row in table.column("row").to_pylist()])
    return table.filter(timed), timings


def _measure(
    answered: _Answered,
    state: RunState,
    rows: npt.NDArray[np.int64],
    job: Job,
    max_num_seqs: int,
) -> PilotMeasure:
    counts = state.counts()
    ok = np.array(answered.table.column("status").to_pylist()) == "ok"
    cut = np.array(answered.table.column("finish_reason").to_pylist()) == "length"
    numbers = np.searchsorted(rows, answered.column("row"))[ok]
    by_row = np.argsort(numbers)
    cached = answered.column("cached_tokens")[ok]
    caps = job.sampling.max_tokens
    outputs = answered.column("completion_tokens")[ok]
    return PilotMeasure(
        rows=tuple(numbers[by_row].tolist()),
        prompts=tuple(answered.column("prompt_tokens")[ok][by_row].tolist()),
        outputs=tuple(outputs[by_row].tolist()),
        cut=tuple(cut[ok][by_row].tolist()),
        failed=int((~ok).sum()),
        rejected_share=counts.rejected / max(1, counts.rows),
        max_tokens=int(caps or outputs.max(initial=1)),
        seconds=float(answered.ended[:, 0].max()),
        start_up_s=answered.start_up_s,
        slices=_slices(answered, max_num_seqs),
        replicas=len(set(answered.workers.tolist())),
        max_num_seqs=max_num_seqs,
        cached_tokens=int(cached.sum()),
        kv_use=answered.kv_use,
        preemptions=answered.preemptions,
        gpu_use=answered.gpu_use,
        gpu_memory_bytes=answered.gpu_memory_bytes,
    )


def _slices(answered: _Answered, max_num_seqs: int) -> tuple[WorkSlice, ...]:
    """The work over time of each replica."""
    found: list[WorkSlice] = []
    for worker, whole in answered.readings.items():
        mine = answered.workers == worker
        readings = whole[whole[:, 0] <= answered.ended[mine, 0].max(initial=0.0)]
        found += slices_of_rows(
            readings[:, :2],
            answered.ended[mine, 1],
            answered.column("prompt_tokens")[mine],
            answered.column("completion_tokens")[mine],
            places=max_num_seqs,
            cached=answered.column("cached_tokens")[mine],
            counted=readings[:, 2:],
        )
    return tuple(found)
