"""From what the pilot measured to the hours of the whole job, with an honest interval.

With P prompt tokens, O output tokens and R tokens read in all, S rows running at a time and G
replicas, the time is

    start-up + (fixed x O / S + row x O + read x R + prompt x P) / G + fixed x (longest - mean)

The last term is the drain: when nothing waits any more, the S x G running rows have some tokens
left each; the last one to end keeps its engine going for `longest` steps, while the work that is
in them fills only `mean` full steps. What is left of a row met while it runs is a uniform share of
a length-biased output (renewal theory, inspection paradox).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from batchwright.core.pilot import Interval, PilotMeasure, PilotReport
from batchwright.core.workload import LengthHistogram
from batchwright.pilot.caps import cap_for_one_percent
from batchwright.pilot.rates import PROMPT_WORTH, Rates, fit_rates
from batchwright.pilot.sample import Sample
from batchwright.pilot.totals import Strata, weighted_quantile

DRAWS = 400
SEED = 20240229
_LARGEST_DRAIN = 4096
FILLED = 0.95

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rows:
    """The pilot's answered rows with their weights, which add up to the job's rows."""

    prompts: Floats
    outputs: Ints
    cut: npt.NDArray[np.bool_]
    weights: Floats
    strata: Ints

    @property
    def read(self) -> Floats:
        """Tokens read in the decode of each row: the sum of prompt + t for t up to its output."""
        return self.outputs * (self.prompts + self.outputs / 2)


@dataclass(frozen=True, slots=True)
class Job:
    """The whole of the work, as far as it is known beforehand."""

    rows: int
    left: int
    computed: float
    running: float
    replicas: int

    @property
    def kept(self) -> bool:
        """Whether the pilot's rows count, so that they are not done again."""
        return self.left < self.rows


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, estimated (first) and drawn (the others): float64[1 + draws]."""

    work: Floats
    left: Floats
    drain: Floats


def estimate(
    measure: PilotMeasure,
    workload: LengthHistogram,
    *,
    rows_total: int,
    rows_left: int,
    sample: Sample,
    replicas: int,
    gpus: int,
    usd_per_gpu_hour: float | None = None,
    cached_share: float | None = None,
) -> PilotReport:
    """What the pilot says of the whole job.

    Args:
        measure: what the pilot measured; it has at least one answered row.
        workload: prompt tokens of all rows that will run.
        rows_total: how many rows that is.
        rows_left: of them after the pilot; equal to `rows_total` when its outcomes do not count.
        sample: the rows chosen for the pilot.
        replicas: engines that the job will run on.
        gpus: of all replicas together.
        usd_per_gpu_hour: the price, if known.
        cached_share: share of the job's prompt tokens that the prefix cache will save; the
            pilot's own unless given.

    Raises:
        ValueError: no row of the pilot has an answer, or there are no slices.
    """
    if not measure.rows or not measure.slices:
        raise ValueError("the pilot has no answers to go by")
    rows = _matched(measure, sample, rows_total)
    cached = measure.cached_share if cached_share is None else cached_share
    prompts = workload.mean * rows_total
    running = _running_in_job(measure, rows, workload.mean)
    job = Job(rows_total, rows_left, prompts * (1 - cached), running, replicas)
    generator = np.random.default_rng(SEED)
    rates = fit_rates(measure.slices, DRAWS, generator)
    times = _times(measure, rows, job, rates, generator)
    spent = measure.start_up_s + (measure.seconds if job.kept else 0.0)
    hours = _interval(spent + times.left + times.drain).times(1 / 3600)
    more = max(1, rows_total - len(measure.rows)) if job.kept else rows_total
    hours_left = _interval(times.left * (rows_left / more) + times.drain * (rows_left > 0))
    work = max(1e-9, float(times.work[0]))
    cap, extrapolated = cap_for_one_percent(rows.outputs, rows.cut, rows.weights)
    quantiles = [weighted_quantile(rows.outputs, rows.weights, x) for x in (0.5, 0.9, 0.99)]
    gpu_hours = hours.times(gpus)
    return PilotReport(
        rows=len(measure.rows),
        rows_total=rows_total,
        rows_left=rows_left,
        prompt_tokens_per_s=prompts / work,
        output_tokens_per_s=float(rows.weights @ rows.outputs) / work,
        rows_per_s=rows_total / work,
        running=job.running * replicas,
        output_p50=quantiles[0],
        output_p90=quantiles[1],
        output_p99=quantiles[2],
        cut_share=float(rows.weights[rows.cut].sum() / rows.weights.sum()),
        max_tokens=measure.max_tokens,
        max_tokens_for_1_percent=cap,
        max_tokens_extrapolated=extrapolated,
        failed_share=measure.failed_share,
        rejected_share=measure.rejected_share,
        start_up_s=measure.start_up_s,
        tail_s=float(times.drain[0]),
        kv_use=measure.kv_use,
        preemptions=measure.preemptions,
        hours=hours,
        hours_left=hours_left.times(1 / 3600),
        gpu_hours=gpu_hours,
        usd=gpu_hours.times(usd_per_gpu_hour) if usd_per_gpu_hour is not None else None,
        gpu_use=measure.gpu_use,
        gpu_memory_bytes=measure.gpu_memory_bytes,
        assumptions=_assumptions(measure, job, rates, cached),
    )


def _matched(measure: PilotMeasure, sample: Sample, rows_total: int) -> Rows:
    """The answered rows, those that failed replaced by others of their stratum."""
    numbers = np.array(measure.rows, dtype=np.int64)
    place = np.minimum(np.searchsorted(sample.rows, numbers), max(0, len(sample.rows) - 1))
    if not len(sample.rows) or (sample.rows[place] != numbers).any():
        raise ValueError("the pilot ran rows that are not in its sample")
    strata, weights = sample.strata[place], sample.weights[place]
    bands = int(sample.strata.max()) + 1
    whole = np.bincount(sample.strata, sample.weights, minlength=bands)
    answered = np.bincount(strata, weights, minlength=bands)
    weights = weights * whole[strata] / answered[strata]
    weights = weights * (rows_total / weights.sum())
    return Rows(
        np.array(measure.prompts, dtype=np.float64),
        np.array(measure.outputs, dtype=np.int64),
        np.array(measure.cut, dtype=np.bool_),
        weights,
        strata,
    )


def running_rows(measure: PilotMeasure) -> float:
    """Rows that one replica runs at a time in steady work.

    Seen while rows waited; if none ever did, what the cap and the KV cache would let in.
    """
    full = [one for one in measure.slices if one.full and one.steps > 0]
    if full:
        rows = np.array([one.output_tokens / one.steps for one in full])
        # While the engine fills up it is no measure; it is full once it is near its usual load.
        steady = full[int(np.argmax(rows >= FILLED * np.median(rows))) :]
        return sum(one.output_tokens for one in steady) / sum(one.steps for one in steady)
    most = max((x.output_tokens / x.steps for x in measure.slices if x.steps > 0), default=1.0)
    room = most / measure.kv_use if measure.kv_use > 0 else float(measure.max_num_seqs)
    return max(1.0, most, min(room, float(measure.max_num_seqs)))


def _running_in_job(measure: PilotMeasure, rows: Rows, mean_prompt: float) -> float:
    """The same for the rows of the job, which are shorter than the sample with its longest rows.

    Where places run out first, nothing changes; where the KV cache or the tokens of a step do, as
    many more rows run as they are shorter.
    """
    running = running_rows(measure)
    cap = float(max(1, measure.max_num_seqs))
    if running >= FILLED * cap:
        return running
    in_pilot = rows.prompts.mean() + rows.outputs.mean()
    in_job = mean_prompt + float(rows.weights @ rows.outputs) / float(rows.weights.sum())
    return min(cap, running * float(in_pilot) / max(1e-9, in_job))


def _times(
    measure: PilotMeasure, rows: Rows, job: Job, rates: Rates, generator: np.random.Generator
) -> Times:
    """Seconds of the work, of the part that is left of it, and of the drain."""
    running = max(1.0, min(job.running, job.rows / job.replicas))
    costs = np.vstack([rates.costs, rates.draws])
    token = costs[:, 0] / running + costs[:, 1]  # seconds per output token, but for what it reads
    strata = Strata(rows.strata, rows.weights)
    outputs, read = strata.total(rows.outputs.astype(np.float64)), strata.total(rows.read)
    each = token[0] * rows.outputs + costs[0, 2] * rows.read
    drawn = strata.draws(each, DRAWS, generator)
    decode = np.concatenate([[strata.total(each)], drawn])
    # Rates drawn apart from the rows: how much dearer the same tokens are.
    priced = (token * outputs + costs[:, 2] * read) / max(
        1e-300, token[0] * outputs + costs[0, 2] * read
    )
    decode = decode * priced
    work = (decode + costs[:, 3] * job.computed) / job.replicas
    done = np.zeros(len(work))
    if job.kept:
        own = rows.prompts.sum() * (1 - measure.cached_share)
        done = each.sum() * priced + costs[:, 3] * own
    left = np.maximum(0.0, work - done / job.replicas)
    return Times(work, left, _drain(rows, job, costs[:, 0], generator))


def _drain(rows: Rows, job: Job, fixed: Floats, generator: np.random.Generator) -> Floats:
    """Seconds lost at the end; the first is the mean of the others' steps at the fitted cost."""
    places = max(1, round(min(job.running * job.replicas, job.rows, _LARGEST_DRAIN)))
    crowded = job.rows > job.running * job.replicas
    chances = rows.weights * (rows.outputs if crowded else 1.0)
    if chances.sum() <= 0:
        return np.zeros(len(fixed))
    edges = np.cumsum(chances)
    picks = np.searchsorted(edges, generator.random((len(fixed) - 1, places)) * edges[-1])
    tokens = rows.outputs[np.minimum(picks, len(rows.outputs) - 1)].astype(np.float64)
    if crowded:
        tokens *= generator.random(tokens.shape)
    steps = tokens.max(axis=1) - tokens.mean(axis=1)
    return fixed * np.concatenate([[steps.mean()], steps])


def _interval(seconds: Floats) -> Interval:
    """The estimate (first) between the 10th and the 90th percentile of what was drawn."""
    low, high = np.quantile(seconds[1:], (0.1, 0.9))
    first = float(seconds[0])
    return Interval(min(float(low), first), first, max(float(high), first))


def _assumptions(measure: PilotMeasure, job: Job, rates: Rates, cached: float) -> tuple[str, ...]:
    found = ["rows come in no particular order of length; the machine stays as fast as it was"]
    if not rates.fitted:
        found.append(
            f"too short to tell prompt from output: a prompt token counts as {PROMPT_WORTH:g} "
            "of an output token"
        )
    if not any(one.full for one in measure.slices):
        found.append(
            f"the engine was never full; with more rows it runs {job.running:,.0f} at a time"
        )
    if cached > 0:
        found.append(f"the prefix cache saves {cached:.0%} of the prompt tokens")
    if job.replicas != measure.replicas:
        found.append(
            f"{job.replicas} replicas are {job.replicas / measure.replicas:g} times as fast as "
            f"the pilot's {measure.replicas}"
        )
    if measure.failed:
        found.append("a row that fails takes as long as one that does not")
    return tuple(found)
