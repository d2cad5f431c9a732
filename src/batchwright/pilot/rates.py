"""What a step, an output token, a token read and a prompt token cost on this engine.

The model is that of a step of an engine with continuous batching (roofline terms as in
`plan/limit.py`): a fixed part (weights read, launches), a part per running row, a part per token of
KV cache read, a part per prompt token computed. Each slice of the pilot is one observation:

    seconds = fixed x steps + row x output_tokens + read x read_tokens + prompt x prompt_tokens

Costs are not negative. The uncertainty is that of a block bootstrap (Künsch 1989) over slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from batchwright.core.pilot import WorkSlice

Floats = npt.NDArray[np.float64]

TERMS = 4
FEWEST_SLICES = 12
# With too few slices to tell prompt from output apart: a prompt token is computed together with
# thousands of others, an output token in a batch of tens or hundreds. As the sample has the mix of
# the job, the figure hardly matters.
PROMPT_WORTH = 0.1
# Relative standard error that is assumed when there is only one slice.
UNKNOWN_ERROR = 0.15
# A machine's speed wanders (clocks, neighbours, host): what a short pilot cannot see of that. The
# relative standard deviation over `WANDER_S` seconds; it falls with the root of the time.
WANDER = 0.03
WANDER_S = 10.0
_SUBSETS = [
    list(columns) for size in range(1, TERMS + 1) for columns in combinations(range(TERMS), size)
]


@dataclass(frozen=True, slots=True)
class Rates:
    """Costs in seconds per step, output token, token read and prompt token.

    Attributes:
        costs: float64[4].
        draws: what else they might be, float64[draws, 4].
        fitted: False when there was only one combined rate to be had.
    """

    costs: Floats
    draws: Floats
    fitted: bool


def fit_rates(slices: Sequence[WorkSlice], draws: int, generator: np.random.Generator) -> Rates:
    """Fit the costs to the slices, and to `draws` resamples of them."""
    rates = _fitted(slices, draws, generator)
    seconds = sum(one.seconds for one in slices)
    wander = WANDER * min(1.0, WANDER_S / max(1e-9, seconds)) ** 0.5
    factors = np.exp(wander * generator.standard_normal((draws, 1)))
    return replace(rates, draws=rates.draws * factors)


def _fitted(slices: Sequence[WorkSlice], draws: int, generator: np.random.Generator) -> Rates:
    work = np.array(
        [[one.steps, one.output_tokens, one.read_tokens, one.prompt_tokens] for one in slices]
    ).reshape(-1, TERMS)
    seconds = np.array([one.seconds for one in slices])
    counts = _block_counts(len(slices), draws, generator)
    if len(slices) < FEWEST_SLICES:
        return _one_rate(work, seconds, counts, generator)
    scale = np.maximum(1e-12, work.mean(axis=0))
    costs = _costs(work / scale, seconds, np.ones((1, len(slices))))[0]
    return Rates(costs / scale, _costs(work / scale, seconds, counts) / scale, fitted=True)


def _block_counts(count: int, draws: int, generator: np.random.Generator) -> Floats:
    """How often each slice is in each resample of circular blocks, float64[draws, count]."""
    length = max(1, round(count ** (1 / 3)))
    blocks = -(-count // length)
    starts = generator.integers(0, max(1, count), (draws, blocks, 1))
    members = ((starts + np.arange(length)) % max(1, count)).reshape(draws, -1)[:, :count]
    flat = (members + count * np.arange(draws)[:, None]).ravel()
    return np.bincount(flat, minlength=draws * count).reshape(draws, count).astype(float)


def _costs(work: Floats, seconds: Floats, counts: Floats) -> Floats:
    """Least squares without negative costs for each row of `counts`, float64[draws, 4].

    The variance of a slice is taken to grow with its length. In the end the costs are scaled so
    that they explain all the time that there was.
    """
    count = len(seconds)
    products = (work[:, :, None] * work[:, None, :]).reshape(count, TERMS * TERMS)
    gram = ((counts / seconds) @ products).reshape(-1, TERMS, TERMS)
    moment = counts @ work  # weighted by 1 / seconds, times seconds
    costs = _non_negative(gram, moment)
    explained = np.einsum("dn,nt,dt->d", counts, work, costs, optimize=True)
    scaled: Floats = costs * ((counts @ seconds) / np.maximum(1e-12, explained))[:, None]
    return scaled


def _non_negative(gram: Floats, moment: Floats) -> Floats:
    """Non-negative least squares by trying every subset of the terms, for many at once."""
    best = np.full(len(gram), np.inf)
    costs = np.zeros((len(gram), TERMS))
    for columns in _SUBSETS:
        inner = gram[:, columns][:, :, columns]
        # A trace of ridge: slices that are all alike leave the split open, not the sum.
        size = np.trace(inner, axis1=1, axis2=2)[:, None, None]
        inner = inner + (1e-6 * size + 1e-300) * np.eye(len(columns))
        found = np.linalg.solve(inner, moment[:, columns, None])[:, :, 0]
        loss = -np.einsum("dt,dt->d", found, moment[:, columns])
        better = (found >= 0).all(axis=1) & (loss < best)
        best = np.where(better, loss, best)
        trial = np.zeros((len(gram), TERMS))
        trial[:, columns] = found
        costs = np.where(better[:, None], trial, costs)
    return costs


def _one_rate(
    work: Floats, seconds: Floats, counts: Floats, generator: np.random.Generator
) -> Rates:
    """Seconds per output token, a prompt token being worth `PROMPT_WORTH` of one."""
    worth = np.array([0.0, 1.0, 0.0, PROMPT_WORTH])
    done = np.maximum(1e-12, work @ worth)
    if len(seconds) < 2:
        rate = seconds.sum() / max(1e-12, done.sum())
        draws = rate * np.exp(UNKNOWN_ERROR * generator.standard_normal(len(counts)))
        return Rates(rate * worth, draws[:, None] * worth, fitted=False)
    rate = seconds.sum() / done.sum()
    draws = (counts @ seconds) / (counts @ done)
    # A bootstrap of n observations has (n - 1) / n of their variance.
    draws = rate * (draws / rate) ** np.sqrt(len(seconds) / (len(seconds) - 1))
    return Rates(rate * worth, draws[:, None] * worth, fitted=False)
