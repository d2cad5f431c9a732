"""From what the pilot measured to the hours and the price of the whole job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from batchwright.core.pilot import Interval, PilotMeasure, PilotReport
from batchwright.pilot.caps import cap_for_one_percent
from batchwright.pilot.forecast import DRAWS, Job, Rows, Times, forecast, running_in_job
from batchwright.pilot.rates import PROMPT_WORTH, Rates, fit_rates
from batchwright.pilot.sample import Sample
from batchwright.pilot.totals import weighted_quantile

SEED = 20240229

Floats = npt.NDArray[np.float64]


def estimate(
    measure: PilotMeasure,
    mean_prompt: float,
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
        measure: what the pilot measured.
        mean_prompt: prompt tokens of a row, over all rows that will run.
        rows_total: how many rows these are.
        rows_left: after the pilot; equal to `rows_total` when its outcomes do not count.
        sample: the rows chosen for the pilot.
        replicas: engines that the job will run on.
        gpus: of all replicas together.
        usd_per_gpu_hour: the price, if known.
        cached_share: of the job's prompt tokens; the pilot's own unless given.

    Raises:
        ValueError: no row of the pilot has an answer, or there are no slices.
    """
    if not measure.rows or not measure.slices:
        raise ValueError("the pilot has no answers to go by")
    rows = _matched(measure, sample, rows_total)
    job = Job(
        rows=rows_total,
        left=rows_left,
        prompts=mean_prompt * rows_total,
        cached_share=measure.cached_share if cached_share is None else cached_share,
        running=running_in_job(measure, rows, mean_prompt),
        replicas=replicas,
    )
    generator = np.random.default_rng(SEED)
    rates = fit_rates(measure.slices, DRAWS, generator)
    times = forecast(measure, rows, job, rates, generator)
    report = _report(measure, rows, job, times)
    price = usd_per_gpu_hour
    return replace(
        report,
        gpu_hours=report.hours.times(gpus),
        usd=report.hours.times(gpus * price) if price is not None else None,
        assumptions=_assumptions(measure, job, rates),
    )


def _report(measure: PilotMeasure, rows: Rows, job: Job, times: Times) -> PilotReport:
    """The report for one GPU without a price."""
    spent = measure.start_up_s + (measure.seconds if job.kept else 0.0)
    hours = _interval(spent + times.left + times.drain).times(1 / 3600)
    more = max(1, job.rows - len(measure.rows)) if job.kept else job.rows
    still = times.left * (job.left / more) + times.drain * (job.left > 0)
    work = max(1e-9, float(times.work[0]))
    cap, extrapolated = cap_for_one_percent(rows.outputs, rows.cut, rows.weights)
    p50, p90, p99 = (weighted_quantile(rows.outputs, rows.weights, x) for x in (0.5, 0.9, 0.99))
    return PilotReport(
        rows=len(measure.rows),
        rows_total=job.rows,
        rows_left=job.left,
        prompt_tokens_per_s=job.prompts / work,
        output_tokens_per_s=float(rows.weights @ rows.outputs) / work,
        rows_per_s=job.rows / work,
        running=job.running * job.replicas,
        output_p50=p50,
        output_p90=p90,
        output_p99=p99,
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
        hours_left=_interval(still).times(1 / 3600),
        gpu_hours=hours,
        usd=None,
        gpu_use=measure.gpu_use,
        gpu_memory_bytes=measure.gpu_memory_bytes,
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
        sample.groups[place],
    )


def _interval(seconds: Floats) -> Interval:
    """The estimate (first) between the 10th and the 90th percentile of what was drawn."""
    low, high = np.quantile(seconds[1:], (0.1, 0.9))
    first = float(seconds[0])
    return Interval(min(float(low), first), first, max(float(high), first))


def _assumptions(measure: PilotMeasure, job: Job, rates: Rates) -> tuple[str, ...]:
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
    if job.cached_share > 0:
        found.append(f"the prefix cache saves {job.cached_share:.0%} of the prompt tokens")
    if job.replicas != measure.replicas:
        found.append(
            f"{job.replicas} replicas are {job.replicas / measure.replicas:g} times as fast as "
            f"the pilot's {measure.replicas}"
        )
    if measure.failed:
        found.append("a row that fails takes as long as one that does not")
    return tuple(found)
