"""A run as workers leave it, made in process: heartbeats, telemetry, receipts, failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from batchwright.core.outcomes import Outcome
from batchwright.core.ports import EngineGauges
from batchwright.core.readings import CardReading, FeedReading, HostReading, Reading
from batchwright.rundir import layout
from batchwright.rundir.events import Events
from batchwright.rundir.readings import reading_line
from batchwright.working.committer import ActiveChunk, Committer
from tests.unit.rundir.small_runs import ManualClock, Row, SmallRun, prompts, small_run

STARTED = 1_700_000_000.0


def answered_run(
    tmp_path: Path, *, rows: int = 40, bad: tuple[Row, ...] = (), **settings: Any
) -> SmallRun:
    """A prepared and ordered run in chunks of 10 rows, the first half of them answered.

    Rows 3 and 4 have failed; the two workers were there for 100 s each, up after 20.
    """
    run = small_run(
        tmp_path, [*prompts(rows), *bad],
        **{"run__chunk_rows": 10, "run__pilot_rows": 0, **settings},
    )  # fmt: skip
    run.prepare()
    run.order()
    for number, chunk in enumerate(run.state().chunks[: rows // 20]):
        commit(run, f"infer-{number % 2}", chunk.number)
    for number in range(2):
        leave_signs(run, f"infer-{number}", started=STARTED + number)
    return run


def commit(run: SmallRun, worker: str, chunk: int, *, generation: int = 0) -> ActiveChunk:
    """Answers to the rows of a chunk; in the first pass the rows 3 and 4 fail."""
    clock = ManualClock()
    clock.seconds = STARTED + 90.0
    committer = Committer(run.storage, worker, clock, run.tokenizer, None)
    chunks = [one for one in run.state().chunks if one.generation == generation]
    active = committer.load(chunks[chunk])
    active.started_at -= 30.0
    outcomes = []
    for row in active.rows.tolist():
        active.times_s[row] = 1.0 + row
        failed = row in (3, 4) and not generation
        outcomes.append(
            Outcome(row, [], error_code="engine_refused", error=f"不行 <b>{row}</b>")
            if failed
            else Outcome(
                row,
                [97] * (1 + row % 3),
                finish_reason="stop",
                cached_tokens=1,
                generating_s=0.5 + row / 2,
            )
        )
    committer.commit(active, outcomes, last=True)
    return active


def leave_signs(run: SmallRun, worker: str, *, started: float, ended: bool = True) -> None:
    """The heartbeat, the event and the telemetry of a worker that was there for 100 s."""
    clock = ManualClock()
    clock.seconds = started + 20.0
    Events(run.storage, worker, clock).write("engine_up", name="fake", version="1")
    lines = [reading(worker, started, seconds) for seconds in range(20, 101, 2)]
    run.storage.append(layout.telemetry(worker), b"".join(map(reading_line, lines)))
    beat = {
        "role": "infer", "host": "node-1", "started": started, "at": started + 100.0,
        "ended": ended, "phase": "running", "rows": 10, "completion_tokens": 20,
        "uncommitted": 0,
        "engine": {"name": "fake", "version": "1", "device": "NVIDIA H200", "kv_tokens": 9},
    }  # fmt: skip
    run.storage.put(layout.heartbeat(worker), orjson.dumps(beat))


def reading(worker: str, started: float, seconds: float) -> Reading:
    """A worker's reading so many seconds after its start."""
    done = seconds - 20
    return Reading(
        started + seconds,
        worker,
        host="node-1",
        phase="running",
        rows=int(done),
        prompt_tokens=int(100 * done),
        completion_tokens=int(10 * done),
        engine=EngineGauges(running=64, waiting=3, kv_use=0.5, preemptions=2),
        feed=FeedReading(in_flight=67, cap=64, max_num_seqs=128, starved_s=0.1 * done),
        node=HostReading(cores=8, cpu_use=0.25),
        cards=(CardReading(0, use=0.9, memory_bytes=70 << 30, memory_total_bytes=80 << 30,
                           power_w=600.0),),
    )  # fmt: skip
