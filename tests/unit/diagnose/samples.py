"""Evidence of a healthy run, from which each test departs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from batchwright.core.workload import LengthHistogram
from batchwright.diagnose.evidence import (
    AnswerEvidence,
    CardEvidence,
    DataEvidence,
    Evidence,
    HostEvidence,
    PlanEvidence,
    PrepareEvidence,
    Settings,
    WorkerEvidence,
)
from batchwright.diagnose.rules import find

CARD = CardEvidence(0, use=0.95, clock=0.88, total_bytes=80_000_000_000, temperature_c=65)

WORKER = WorkerEvidence(
    name="infer-1", host="node-1", device="NVIDIA H100", seconds=900, start_up_s=60, idle_s=5,
    tail_s=5, starved=0.01, commit_wait=0.0, rows=50_000, computed_prompt_tokens=15_000_000,
    output_tokens=5_000_000, tokens_per_s=27_000, running=250, cap=256, max_num_seqs=256, full=0.95,
    kv_use=0.7, kv_peak=0.8, kv_tokens=400_000, step_s=0.03, fixed_step=0.4, busiest_core=0.6,
    quarters=(26_000, 27_500, 27_000, 27_200), cards=(CARD,),
)  # fmt: skip

PREPARE = PrepareEvidence(1, 50_000, 15_000_000, 20, 30, 3, 10)

ANSWERS = AnswerEvidence(
    rows=50_000, outputs=LengthHistogram((50, 100, 150, 300), (200, 500, 280, 20)), cut=0.004,
    texts=1_000, marked=0.0, looping=0.0, prompt_tokens=15_000_000, output_tokens=5_000_000,
)  # fmt: skip

DATA = DataEvidence(
    files=3, bytes=60_000_000, rows_seen=30_000, longest_prompt=1_400, mean_prompt=300,
    repeated=0.01, hit_rate_file=0.1, hit_rate_best=0.11,
)  # fmt: skip

PLAN = PlanEvidence(
    gpu="H100", memory_bytes=85_520_809_984, bandwidth_bytes_s=3.35e12, flops=989e12, nvlink=True,
    weight_bytes=15_200_000_000, active_parameters=6_500_000_000, kv_bytes_per_token=57_344,
    activations_bytes=2_000_000_000,
)  # fmt: skip

HEALTHY = Evidence(
    settings=Settings(max_model_len=4_096, gpu_memory_utilization=0.92,
                      max_num_batched_tokens=16_384, temperature=0.0),
    workers=(WORKER, replace(WORKER, name="infer-2")),
    prepare=PREPARE,
    hosts=(HostEvidence("node-1", 16, 1_000_000_000, 8_000_000_000),),
    data=DATA,
    answers=ANSWERS,
    plan=PLAN,
    wall_s=1_000,
    rows=50_200,
    failed={"timeout": 20},
    rejected=30,
)  # fmt: skip


def with_workers(evidence: Evidence = HEALTHY, **changes: Any) -> Evidence:
    """The same run with all workers changed alike."""
    workers = tuple(replace(one, **changes) for one in evidence.workers)
    return replace(evidence, workers=workers)


def with_settings(evidence: Evidence = HEALTHY, **changes: Any) -> Evidence:
    """The same run with other settings."""
    return replace(evidence, settings=replace(evidence.settings, **changes))


def with_answers(evidence: Evidence = HEALTHY, **changes: Any) -> Evidence:
    """The same run with other answers."""
    return replace(evidence, answers=replace(evidence.answers, **changes))


def with_data(evidence: Evidence = HEALTHY, **changes: Any) -> Evidence:
    """The same run with other input."""
    return replace(evidence, data=replace(evidence.data, **changes))


def with_card(evidence: Evidence = HEALTHY, **changes: Any) -> Evidence:
    """The same run with all cards changed alike."""
    return with_workers(evidence, cards=(replace(CARD, **changes),))


def codes(evidence: Evidence) -> list[str]:
    """Names of what the rules find."""
    return [one.code for one in find(evidence)]
