"""Words of the pilot: what a small run on the real engine measured, and what follows from it.

Times are seconds unless a name says hours; shares are from 0 to 1.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from batchwright.core.workload import NO_LENGTHS, LengthHistogram


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the bounds between which the truth lies in 80 of 100 jobs."""

    low: float
    estimate: float
    high: float

    def times(self, factor: float) -> Interval:
        """The same in another unit; `factor` is not negative."""
        return Interval(self.low * factor, self.estimate * factor, self.high * factor)


class WorkSlice(NamedTuple):
    """What one replica did in one stretch of time; stretches without a running row are left out.

    Attributes:
        seconds: how long it was.
        prompt_tokens: computed; those found in the prefix cache are not counted.
        output_tokens: made in the stretch, also those of rows that finished later.
        rows: that finished in it.
        steps: of the engine, in each of which every running row gets one token.
        read_tokens: sum, over the output tokens, of the tokens that stood before each of them.
        full: whether rows were waiting for a place all the time.
    """

    seconds: float
    prompt_tokens: float
    output_tokens: float
    rows: float
    steps: float
    read_tokens: float
    full: bool


@dataclass(frozen=True, slots=True)
class PilotMeasure:
    """What a pilot run measured.

    Attributes:
        rows: numbers of the rows that have an answer, ascending.
        prompts: their prompt tokens, parallel to `rows`.
        outputs: their output tokens, parallel to `rows`.
        cut: whether `max_tokens` ended them (finish reason `length`), parallel to `rows`.
        failed: rows of the pilot that have no answer.
        rejected_share: of the rows read so far.
        max_tokens: the largest output cap of any row.
        seconds: from the first row in to the last answer out, start-up left out.
        start_up_s: until the engines could take rows.
        slices: the work over time; each slice is of one replica.
        replicas: engines that the pilot ran on.
        max_num_seqs: rows that one engine may run at the same time.
        cached_tokens: prompt tokens of `rows` that the prefix cache saved.
        kv_use: share of the KV cache in use, at its peak.
        preemptions: of all engines.
        gpu_use: mean share of the time in which the GPUs were busy; None if not known.
        gpu_memory_bytes: of one card, at its peak; None if not known.
    """

    rows: tuple[int, ...]
    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    cut: tuple[bool, ...]
    failed: int
    rejected_share: float
    max_tokens: int
    seconds: float
    start_up_s: float
    slices: tuple[WorkSlice, ...]
    replicas: int
    max_num_seqs: int
    cached_tokens: int = 0
    kv_use: float = 0.0
    preemptions: int = 0
    gpu_use: float | None = None
    gpu_memory_bytes: int | None = None

    @property
    def cached_share(self) -> float:
        """Share of the prompt tokens that the prefix cache saved."""
        return self.cached_tokens / max(1, sum(self.prompts))

    @property
    def failed_share(self) -> float:
        """Share of the rows run that have no answer."""
        return self.failed / max(1, self.failed + len(self.rows))


@dataclass(frozen=True, slots=True)
class PilotReport:
    """What the pilot says of the whole job.

    Attributes:
        rows: of the pilot that have an answer.
        rows_total: of the job.
        rows_left: still to do after the pilot.
        prompt_tokens_per_s: of all replicas in steady work, those from the prefix cache counted.
        output_tokens_per_s: of all replicas in steady work.
        rows_per_s: of all replicas in steady work.
        running: rows that all replicas together run at the same time.
        output_p50: output tokens that half the job's rows do not exceed; p90 and p99 likewise.
        cut_share: of the answers that `max_tokens` ends.
        max_tokens: the largest cap that the pilot ran with.
        max_tokens_for_1_percent: the cap that would end 1 % of the answers; None when so many are
            cut that nothing can be said.
        max_tokens_extrapolated: whether that cap lies beyond what the pilot could see.
        failed_share: of the pilot's rows.
        rejected_share: of the rows read so far.
        start_up_s: until the engines could take rows.
        tail_s: lost at the end, when the last long rows run in an engine that is not full.
        kv_use: share of the KV cache in use, at its peak.
        preemptions: of all engines.
        hours: of the whole job, start-up included, and the pilot's own if its rows count.
        hours_left: from the end of the pilot on.
        gpu_hours: `hours` on all GPUs.
        usd: None when no price is given.
        gpu_use: mean share of the time in which the GPUs were busy; None if not known.
        gpu_memory_bytes: of one card, at its peak; None if not known.
        assumptions: what the figures rest on, in words.
        outputs: output tokens of the pilot's answers.
        accepted_share: of the tokens that speculative decoding proposed; None without it.
        plan_changes: settings that the plan has otherwise now that the answers are known.
    """

    rows: int
    rows_total: int
    rows_left: int
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    rows_per_s: float
    running: float
    output_p50: int
    output_p90: int
    output_p99: int
    cut_share: float
    max_tokens: int
    max_tokens_for_1_percent: int | None
    max_tokens_extrapolated: bool
    failed_share: float
    rejected_share: float
    start_up_s: float
    tail_s: float
    kv_use: float
    preemptions: int
    hours: Interval
    hours_left: Interval
    gpu_hours: Interval
    usd: Interval | None
    gpu_use: float | None = None
    gpu_memory_bytes: int | None = None
    accepted_share: float | None = None
    assumptions: tuple[str, ...] = ()
    outputs: LengthHistogram = NO_LENGTHS
    plan_changes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {**asdict(self), "assumptions": list(self.assumptions)}
