"""What a pilot measured, from the parts and timings that it left, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from batchwright.config.job import Job
from batchwright.core.errors import JobError
from batchwright.core.pilot import PilotMeasure, PilotReport, WorkSlice
from batchwright.core.records import Chunk, Slice
from batchwright.core.workload import LengthHistogram
from batchwright.order import PILOT_SEED
from batchwright.pilot.estimate import estimate
from batchwright.pilot.sample import choose_rows
from batchwright.pilot.slices import slices_of_rows
from batchwright.rundir import layout
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.prepared import prompt_lengths
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage

_COLUMNS = ["row", "status", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens"]


@dataclass(frozen=True, slots=True)
class _Answered:
    """The pilot's rows as the parts and timings know them, in the order in which they were fed."""

    table: pa.Table
    workers: npt.NDArray[np.str_]
    ended: npt.NDArray[np.float64]  # [rows, 2]: seconds and engine steps since the engine was up
    readings: dict[str, npt.NDArray[np.float64]]  # of each worker, [readings, 2], the same two
    start_up_s: float
    kv_use: float
    preemptions: int

    def column(self, name: str) -> npt.NDArray[np.int64]:
        return np.asarray(self.table.column(name).to_numpy())


def pilot_report(
    storage: Storage, manifest: Manifest, job: Job, state: RunState, max_num_seqs: int
) -> PilotReport:
    """What the finished pilot of a run says of the whole job.

    Raises:
        JobError: no row of the pilot has an answer.
    """
    rows, lengths = rows_that_run(storage, state)
    answered = _read_answers(storage, state)
    measure = _measure(answered, state, rows, job, max_num_seqs)
    if not measure.rows or not measure.slices:
        raise JobError(
            "no row of the pilot has an answer",
            f"Look at {storage.root / layout.LOGS} and at the failures: batchwright status RUN.",
        )
    return estimate(
        measure,
        LengthHistogram.of(lengths.tolist()),
        rows_total=len(lengths),
        rows_left=len(lengths) - sum(chunk.num_rows for chunk in state.pilot),
        sample=choose_rows(lengths, manifest.pilot_rows, PILOT_SEED),
        replicas=job.run.replicas,
        gpus=job.run.replicas * _gpus_per_replica(job),
        usd_per_gpu_hour=job.plan.usd_per_gpu_hour,
    )


def over_budget(report: PilotReport, max_hours: float | None, max_usd: float | None) -> str | None:
    """How the estimate breaks a budget, in words; None if it keeps them.

    Raises:
        JobError: there is a budget in dollars, but no price.
    """
    if max_hours is not None and report.hours.estimate > max_hours:
        hours = report.hours
        return (
            f"the job would take {hours.estimate:.2f} hours ({hours.low:.2f} to {hours.high:.2f}); "
            f"plan.max_hours is {max_hours:g}"
        )
    if max_usd is None:
        return None
    if report.usd is None:
        raise JobError("plan.max_usd needs a price", "Set plan.usd_per_gpu_hour.")
    if report.usd.estimate > max_usd:
        usd = report.usd
        return (
            f"the job would cost ${usd.estimate:.2f} (${usd.low:.2f} to ${usd.high:.2f}); "
            f"plan.max_usd is {max_usd:g}"
        )
    return None


def rows_that_run(
    storage: Storage, state: RunState
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Numbers and prompt tokens of all rows that are in a chunk, in input order."""
    first = [batch for batch in state.batches if batch.generation == 0]
    slices: list[Slice] = [one for batch in first for chunk in batch.chunks for one in chunk.slices]
    lengths = prompt_lengths(storage, slices)
    numbers = [np.arange(one.start, one.stop) + one.first_row for one in slices]
    rows = np.concatenate([np.empty(0, np.int64), *numbers])
    order = np.argsort(rows)
    return rows[order], lengths[order]


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
        found = np.asarray(timings["readings"], dtype=np.float64).reshape(-1, 2)
        if len(found) > len(readings.get(worker, ())):  # a later chunk's hold the earlier ones
            readings[worker] = found
        start_up_s = max(start_up_s, timings["start_up_s"])
    gauges = [_gauges(storage, worker) for worker in readings]
    return _Answered(
        table=pa.concat_tables(tables),
        workers=np.array(workers),
        ended=np.array(ended),
        readings=readings,
        start_up_s=start_up_s,
        kv_use=max((kv_use for kv_use, _ in gauges), default=0.0),
        preemptions=sum(preemptions for _, preemptions in gauges),
    )


def _gauges(storage: Storage, worker: str) -> tuple[float, int]:
    """The peak use of a worker's KV cache, and its preemptions."""
    raw = storage.read_if_there(layout.telemetry(worker)) or b""
    lines = [orjson.loads(line) for line in raw.splitlines()]
    return (
        max((float(line["kv_use"]) for line in lines), default=0.0),
        max((int(line["preemptions"]) for line in lines), default=0),
    )


def _read_chunk(storage: Storage, state: RunState, chunk: Chunk) -> tuple[pa.Table, dict[str, Any]]:
    """The chunk's rows that have a time, and the times."""
    timings = orjson.loads(storage.read(layout.timings(chunk.name)))
    mine = (chunk.generation, chunk.number)
    table = pa.concat_tables(
        pq.read_table(pa.BufferReader(storage.read(one.file)), columns=_COLUMNS)
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
    )


def _slices(answered: _Answered, max_num_seqs: int) -> tuple[WorkSlice, ...]:
    """The work over time of each replica."""
    found: list[WorkSlice] = []
    for worker, readings in answered.readings.items():
        mine = answered.workers == worker
        found += slices_of_rows(
            readings,
            answered.ended[mine, 1],
            answered.column("prompt_tokens")[mine],
            answered.column("completion_tokens")[mine],
            places=max_num_seqs,
            cached=answered.column("cached_tokens")[mine],
        )
    return tuple(found)


def _gpus_per_replica(job: Job) -> int:
    options = job.engine.options
    return int(options.get("tensor_parallel_size", 1)) * int(
        options.get("pipeline_parallel_size", 1)
    )
