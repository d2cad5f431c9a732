"""Seconds of the whole job, drawn many times, from costs and a sample of its rows.

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

from batchwright.core.pilot import PilotMeasure
from batchwright.pilot.rates import Rates
from batchwright.pilot.totals import Strata

DRAWS = 400
# An engine is full from this share of its usual load on, and out of places from this share of them.
FILLED = 0.95
_LARGEST_DRAIN = 4096

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
    groups: Ints

    @property
    def read(self) -> Floats:
        """Tokens read in the decode of each row: the sum of prompt + t for t up to its output."""
        return self.outputs * (self.prompts + self.outputs / 2)


@dataclass(frozen=True, slots=True)
class Job:
    """The whole of the work, as far as it is known beforehand.

    Attributes:
        rows: in all.
        left: after the pilot.
        prompts: prompt tokens in all.
        cached_share: of them, that the prefix cache will save.
        running: rows that one replica runs at a time.
        replicas: engines.
    """

    rows: int
    left: int
    prompts: float
    cached_share: float
    running: float
    replicas: int

    @property
    def computed(self) -> float:
        """Prompt tokens that the prefix cache does not save."""
        return self.prompts * (1 - self.cached_share)

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


def running_in_job(measure: PilotMeasure, rows: Rows, mean_prompt: float) -> float:
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


def forecast(
    measure: PilotMeasure, rows: Rows, job: Job, rates: Rates, generator: np.random.Generator
) -> Times:
    """Seconds of the work, of the part that is left of it, and of the drain."""
    running = max(1.0, min(job.running, job.rows / job.replicas))
    costs = np.vstack([rates.costs, rates.draws])
    token = costs[:, 0] / running + costs[:, 1]  # seconds per output token, but for what it reads
    strata = Strata(rows.strata, rows.weights, rows.groups)
    outputs, read = strata.total(rows.outputs.astype(np.float64)), strata.total(rows.read)
    each = token[0] * rows.outputs + costs[0, 2] * rows.read
    drawn = strata.draws(each, DRAWS, generator)
    # How much dearer the same tokens are at rates drawn apart from the rows.
    priced = token * outputs + costs[:, 2] * read
    priced = priced / priced[0] if priced[0] > 0 else np.ones(len(priced))
    decode = np.concatenate([[strata.total(each)], drawn])
    decode = decode * priced
    work = (decode + costs[:, 3] * job.computed) / job.replicas
    done = np.zeros(len(work))
    if job.kept:
        own = rows.prompts.sum() * (1 - measure.cached_share)
        done = each.sum() * priced + costs[:, 3] * own
    left = np.maximum(0.0, work - done / job.replicas)
    # Where only one rate is known, a step is taken to cost the same however few rows it has.
    fixed = costs[:, 0] if rates.fitted else token * running
    return Times(work, left, _drain(rows, job, fixed, generator))


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
    lost: Floats = fixed * np.concatenate([[steps.mean()], steps])
    return lost
