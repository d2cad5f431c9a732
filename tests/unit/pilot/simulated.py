"""A simulated engine of known speed, and jobs with heavy-tailed lengths for it."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from batchwright.core.pilot import PilotMeasure, PilotReport
from batchwright.core.workload import LengthHistogram
from batchwright.pilot.estimate import estimate
from batchwright.pilot.sample import Sample, choose_rows, weigh
from batchwright.pilot.slices import slices_of_rows

START_UP_S = 30.0
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Engine:
    """Seconds of a step: fixed, and per running row, token read and prompt token; and its noise.

    `noise` is the relative standard deviation of single steps, `wander` that of a slow drift that
    keeps its value for about `memory` steps.
    """

    max_num_seqs: int = 256
    fixed: float = 6e-3
    row: float = 15e-6
    read: float = 12e-9
    prompt: float = 25e-6
    noise: float = 0.1
    wander: float = 0.03
    memory: int = 50
    budget: int = 8192
    read_every: int = 3


@dataclass(frozen=True)
class Job:
    prompts: Array
    outputs: Array
    cut: Array
    max_tokens: int


def lengths(
    generator: np.random.Generator, count: int, median: float, sigma: float
) -> tuple[Array, Array]:
    """Lognormal prompt lengths, and the normal scores behind them."""
    scores = generator.standard_normal(count)
    return np.maximum(1, np.rint(median * np.exp(sigma * scores))).astype(np.int64), scores


def capped(prompts: Array, wanted: Array, max_tokens: int) -> Job:
    whole = np.maximum(1, np.rint(np.minimum(wanted, 10.0 * max_tokens))).astype(np.int64)
    return Job(prompts, np.minimum(whole, max_tokens), whole > max_tokens, max_tokens)


def classification(generator: np.random.Generator, count: int) -> Job:
    """Prompts of some hundred tokens, a label as the answer, sometimes a sentence."""
    prompts, _ = lengths(generator, count, 220, 0.8)
    return capped(prompts, 3 * np.exp(0.7 * generator.standard_normal(count)), 32)


def summaries(generator: np.random.Generator, count: int) -> Job:
    """Long prompts; answers grow with them and have a lognormal tail."""
    prompts, scores = lengths(generator, count, 1500, 0.9)
    own = generator.standard_normal(count)
    return capped(prompts, 250 * np.exp(0.8 * (0.5 * scores + 0.87 * own)), 2048)


def mixed(generator: np.random.Generator, count: int) -> Job:
    """Half short answers, half with a Pareto tail (index 1.3: no variance but for the cap)."""
    prompts, scores = lengths(generator, count, 300, 1.2)
    tail = 40 * (1 + generator.pareto(1.3, count)) * np.exp(0.3 * scores)
    short = 5 * np.exp(0.6 * generator.standard_normal(count))
    return capped(prompts, np.where(generator.random(count) < 0.5, tail, short), 4096)


def schedule(prompts: Array, outputs: Array, engine: Engine) -> Array:
    """The step at which each row begins, first come, first served.

    Each takes the place that is free first, when the token budget of a step has room for it.
    """
    free = [0] * engine.max_num_seqs
    starts = []
    now = used = 0
    for prompt, length in zip(prompts.tolist(), outputs.tolist(), strict=True):
        if free[0] > now:
            now, used = free[0], 0
        used += prompt
        if used > engine.budget:
            now += used // engine.budget
            used %= engine.budget
        starts.append(now)
        heapq.heapreplace(free, now + length)
    return np.array(starts)


def simulate(
    engine: Engine, prompts: Array, outputs: Array, generator: np.random.Generator
) -> tuple[Array, Array]:
    """The step after which each row, in feeding order, is done; and seconds after each step."""
    starts = schedule(prompts, outputs, engine)
    ends = starts + outputs
    steps = int(ends.max())

    def at(places: Array, weights: Array | None = None) -> Array:
        return np.bincount(places, weights, minlength=steps + 1)[: steps + 1]

    running = np.cumsum(at(starts) - at(ends))
    # Tokens held: a prompt at the start, one more with each step, all gone at the end.
    held = np.cumsum(at(starts, prompts) - at(ends, prompts + outputs) + running)
    cost = engine.fixed + engine.row * running + engine.read * held
    cost = (cost + engine.prompt * at(starts, prompts))[:steps]
    cost = cost * (1 + engine.noise * generator.standard_normal(steps))
    slow = np.cumsum(generator.standard_normal(steps + engine.memory))
    slow = (slow[engine.memory :] - slow[: -engine.memory]) / engine.memory**0.5
    return ends, np.cumsum(np.maximum(0.0, cost * (1 + engine.wander * slow)))


def pilot(engine: Engine, job: Job, rows: Array, generator: np.random.Generator) -> PilotMeasure:
    """What a pilot on these rows would measure, the engine's steps being read now and then."""
    prompts, outputs = job.prompts[rows], job.outputs[rows]
    ends, times = simulate(engine, prompts, outputs, generator)
    seen = np.unique(np.append(np.arange(0, len(times), engine.read_every), len(times) - 1))
    readings = np.column_stack([times[seen], seen + 1.0])
    slices = slices_of_rows(
        readings, ends.astype(float), prompts, outputs, places=engine.max_num_seqs
    )
    return PilotMeasure(
        rows=tuple(rows.tolist()), prompts=tuple(prompts.tolist()),
        outputs=tuple(outputs.tolist()), cut=tuple(job.cut[rows].tolist()), failed=0,
        rejected_share=0.0, max_tokens=job.max_tokens, seconds=float(times[-1]),
        start_up_s=START_UP_S, slices=slices, replicas=1, max_num_seqs=engine.max_num_seqs,
    )  # fmt: skip


def histogram(lengths: Array) -> LengthHistogram:
    values, counts = np.unique(lengths, return_counts=True)
    return LengthHistogram(tuple(values.tolist()), tuple(counts.tolist()))


def drawn(
    lengths: npt.NDArray[np.integer], wanted: int, seed: int, groups: npt.NDArray[np.int64] | None = None
) -> Sample:  # fmt: skip
    """A pilot's rows, and what they stand for."""
    rows = choose_rows(lengths, wanted, seed, groups)
    return weigh(lengths, rows, wanted, None if groups is None else groups[rows])


def trial(
    make_job: Any, engine: Engine, seed: int, rows: int = 50_000, wanted: int = 1_000,
    *, kept: bool = False,
) -> tuple[PilotReport, float]:  # fmt: skip
    """The report of a pilot, and the true hours of the whole job.

    With `kept` the pilot's rows count and only the others are run after it; otherwise all are.
    """
    generator = np.random.default_rng(seed)
    job = make_job(generator, rows)
    sample = drawn(job.prompts, wanted, seed)
    measure = pilot(engine, job, sample.rows, generator)
    rest = np.ones(rows, dtype=bool)
    rest[sample.rows] = not kept
    truth = START_UP_S + (measure.seconds if kept else 0.0)
    truth += float(simulate(engine, job.prompts[rest], job.outputs[rest], generator)[1][-1])
    report = estimate(
        measure, float(job.prompts.mean()), rows_total=rows, rows_left=int(rest.sum()),
        sample=sample, replicas=1, gpus=1, usd_per_gpu_hour=2.0,
    )  # fmt: skip
    return report, truth / 3600
