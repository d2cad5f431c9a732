"""A run of which everything is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from batchwright.core.ports import EngineGauges
from batchwright.core.readings import (
    CardReading,
    FeedReading,
    HostReading,
    PrepareReading,
    ProcessReading,
    Reading,
)
from batchwright.metrics.words import Look, WorkerLook
from batchwright.rundir.readings import plain_reading
from batchwright.rundir.state import Counts
from batchwright.running.drive import Progress

CARD = CardReading(
    index=3, use=0.9, memory_use=0.6, memory_bytes=70, memory_total_bytes=80, others_bytes=5,
    power_w=650.5, power_limit_w=700.0, sm_mhz=1410, sm_max_mhz=1980, temperature_c=71.0,
    throttled=("heat",), pcie_received_bytes_s=9, pcie_sent_bytes_s=8, nvlink_bytes=7,
)  # fmt: skip

NODE = HostReading(
    cores=2, cpu_use=0.5, memory_bytes=3, memory_total_bytes=4, disk_read_bytes=5,
    disk_written_bytes=6, net_received_bytes=7, net_sent_bytes=8, shm_bytes=1, shm_total_bytes=2,
    run_disk_free_bytes=40, run_disk_total_bytes=100,
)  # fmt: skip

READING = Reading(
    at=10.0, worker="w", host="node-1", phase="running", rows=7, prompt_tokens=70, cached_tokens=20,
    completion_tokens=30, restarts=1, kv_peak=0.8,
    engine=EngineGauges(
        running=3, waiting=1, kv_use=0.5, preemptions=2, steps=9, prompt_tokens=50,
        output_tokens=40, drafted_tokens=6, accepted_tokens=5, prefix_tokens=70,
        prefix_hit_tokens=20,
    ),
    feed=FeedReading(
        in_flight=4, cap=6, max_num_seqs=8, starved_s=0.25, media_s=0.5, commit_wait_s=0.75,
        commits_waiting=1, commit_s=1.5, committed_bytes=900, committed_rows=5,
    ),
    process=ProcessReading(1.5, 2.5, 2.0, memory_bytes=5),
    node=NODE,
    cards=(CARD, replace(CARD, index=4, use=None)),
)  # fmt: skip

PREPARES = Reading(
    at=10.0, worker="p", role="prepare", host="node-1", node=NODE, process=ProcessReading(3.5),
    prepare=PrepareReading(100, 1000, 1.0, 2.0, 3.0, 4.0),
)  # fmt: skip

COUNTS = Counts(
    rows=100, rejected=2, ok=90, failed=3, truncated=4, prompt_tokens=1000, completion_tokens=500,
    chunks=10, chunks_done=9, ordered=True, failures={"timeout": 3},
)  # fmt: skip

PROGRESS = Progress(
    run_dir="runs/r", counts=COUNTS, rows_expected=100, rows_done=96, rows_per_s=2.0,
    tokens_per_s=20.0, eta_s=2.0, phase="running",
)  # fmt: skip


def heartbeat(reading: Reading, **more: Any) -> dict[str, Any]:
    """As a worker with this reading has it."""
    state = {"role": reading.role, "at": reading.at, "host": reading.host, "ended": False}
    if reading.role == "prepare":
        state |= {"splits": 4}
    else:
        tokens = {"prompt_tokens": 70, "cached_tokens": 20, "completion_tokens": 30}
        engine = {"name": "fake", "version": "1", "device": "none"}
        state |= {"rows": 7, "uncommitted": 2, "engine": engine, **tokens}
    return {**state, "reading": plain_reading(reading), **more}


LOOK = Look(
    run="r",
    about={"model": "m"},
    started_at=5.0,
    progress=PROGRESS,
    estimated_s=60.0,
    limit_s=90.0,
    workers=(
        WorkerLook("w", heartbeat(READING), READING),
        WorkerLook("p", heartbeat(PREPARES), PREPARES),
    ),
)
