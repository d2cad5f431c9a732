"""How many rows an engine holds: as many as its KV pool has room for, found out while it runs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from batchwright.core.ports import EngineGauges
from batchwright.core.workload import guess_output

LOOK_EVERY_S = 2.0

# Of the pool, filled by expectation: rows do not all have their mean length at the same time.
POOL_SHARE = 0.88

MOST_PREEMPTED = 0.01  # of the finished rows: preempted ones are computed again from the start
MANY_PREEMPTED = 0.1  # of those in the engine
SHRINK = 0.95
MOST_TRIM = 1.5
GROW_BELOW_USE = 0.85
GROW, GROW_MOST = 1.03, 1.5

# The measured share of shared prompt tokens means nothing while the pool is nearly empty.
LEAST_USE_TO_MEASURE = 0.05
SHARING_RANGE = (0.02, 1.1)


Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

# Finished rows that count, per row that may run: the order may bring other rows in time.
GENERATIONS = 4
FEW = 0.05


class LiveRow(NamedTuple):
    """A row in the engine. `age` is the steps since it was sent: tokens that it has, or fewer."""

    prompt_tokens: int
    max_tokens: int
    age: int


def margin_when_bound(cap: int) -> int:
    """Rows besides the cap while the pool is the limit: a step or two of finished rows.

    The engine may let them in too, so they are few.
    """
    return max(8, min(16, cap // 16))


def expected_resident(finished: Sequence[tuple[int, int]], live: Sequence[LiveRow]) -> float:
    """Tokens in the pool per running row, once rows of all ages are in it.

    A row is resident for as long as it makes tokens, so a moment meets long answers more often
    than short ones: with outputs o and prompts p, it is E[o p] / E[o] + E[o^2] / (2 E[o]).

    What has finished early is short, and says little of the rest. So the rows in the engine count
    as known to be longer than they are (the Kaplan-Meier estimate), and what no row has reached yet
    is guessed.

    Args:
        finished: prompt and output tokens of rows that are done.
        live: the rows in the engine; at least one row must be given in all.
    """
    prompts = np.array([row.prompt_tokens for row in live] + [row[0] for row in finished], float)
    ages = [min(row.age, row.max_tokens) for row in live]
    lengths = np.array(ages + [row[1] for row in finished], float)
    ended = np.arange(len(lengths)) >= len(live)
    longest = max((row[1] for row in finished), default=0)
    older = [row for row in live if row.age >= longest]
    # A few that outlive the rest may only have waited for their turn: no reason for a large guess.
    few = len(older) < FEW * len(lengths)
    ends = [
        min(row.max_tokens, max(2 * row.age, 0 if few else guess_output(row.max_tokens)))
        for row in older
    ]
    mean, half_square = survival_integrals(lengths, ended, float(np.mean(ends)) if ends else 0.0)
    weights = np.maximum(1.0, lengths)
    return float(weights @ prompts / weights.sum() + half_square / max(1.0, mean))


def survival_integrals(lengths: Floats, ended: Flags, end: float) -> tuple[float, float]:
    """E[o] and E[o^2] / 2, where lengths that have not `ended` are lower bounds.

    The share that outlives the largest length goes on to `end`.
    """
    order = np.lexsort((~ended, lengths))  # of equal ones, those that ended come first
    times, events = lengths[order], ended[order]
    at_risk = np.arange(len(times), 0, -1)
    alive = np.cumprod(1.0 - events / at_risk)
    last = max(float(times[-1]), end)
    edges = np.concatenate([[0.0], times, [last]])
    shares = np.concatenate([[1.0], alive])
    mean = float(shares @ np.diff(edges))
    return mean, float(shares @ np.diff(edges**2)) / 2


def held_tokens(live: Sequence[LiveRow]) -> int:
    """Tokens of these rows so far, each counted by itself."""
    return sum(row.prompt_tokens + min(row.age, row.max_tokens) for row in live)


class Flow:
    """Finds the cap of rows in the engine; without clock and engine.

    The cap is the pool over the expected tokens of a row, corrected by two measurements: how much
    of the pool the rows take together (rows that share a prompt's beginning take less than their
    sum), and whether rows are preempted (fewer then) or room stays free (more then).

    Args:
        max_num_seqs: the most rows that run at the same time.
        kv_tokens: that fit the pool; 0 if not known, and then there is no cap.
    """

    def __init__(self, max_num_seqs: int, kv_tokens: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._kv_tokens = kv_tokens
        self._finished: deque[tuple[int, int]] = deque(maxlen=GENERATIONS * max_num_seqs)
        self._sharing = 1.0
        self._trim = 1.0
        self._preemptions = 0
        self._finished_since = 0  # the last correction of the trim
        self._preempted = 0  # since then
        self._uses: list[float] = []  # of the pool, at each look since then
        self.cap = max_num_seqs

    @property
    def bound(self) -> bool:
        """Whether the pool and not `max_num_seqs` is the limit."""
        return self.cap < self._max_num_seqs

    def finish(self, prompt_tokens: int, output_tokens: int) -> None:
        """A row is done. Rows without output are of no use here."""
        if output_tokens > 0:
            self._finished.append((prompt_tokens, output_tokens))
            self._finished_since += 1

    def restart(self) -> None:
        """A new engine counts its preemptions from 0."""
        self._preemptions = 0

    def look(self, gauges: EngineGauges, live: Sequence[LiveRow]) -> int:
        """Find the cap again.

        Args:
            gauges: the engine now.
            live: the rows in it, oldest first, or those that are about to go in.

        Returns:
            The rows that the engine should hold at most, besides a small margin.
        """
        if not self._kv_tokens or not live:
            return self.cap
        preempted = gauges.preemptions - self._preemptions
        self._preemptions = gauges.preemptions
        if not preempted:
            self._measure_sharing(gauges, live)
        resident = self._resident(live) * self._sharing
        room = POOL_SHARE * self._kv_tokens / max(1.0, resident)
        self._uses.append(gauges.kv_use)
        self._preempted += preempted
        # While rows of an earlier, larger cap are in the engine, it is they that are preempted.
        if len(live) <= self.cap + margin_when_bound(self.cap):
            # While the pool does not bind, nothing of an old growth is kept; and a moment with much
            # room must not make the cap follow every later, smaller one.
            trim = min(self._trim, max(1.0, self._max_num_seqs / room))
            self._trim = min(MOST_TRIM, trim * self._correction(len(live)))
        self.cap = max(1, min(self._max_num_seqs, math.floor(room * self._trim)))
        return self.cap

    def _resident(self, live: Sequence[LiveRow]) -> float:
        if len(self._finished) == self._finished.maxlen:
            # Rows have been forgotten, the short ones that were in the engine beside those of today
            # too: all of today's would then make rows look longer than they are.
            longest = max(output for _, output in self._finished)
            live = [row for row in live if row.age > longest]
        return expected_resident(self._finished, live)

    def _correction(self, num_live: int) -> float:
        """By how much the cap was wrong, judged over a generation of rows, or sooner if by much.

        Rows of a generation are young together and old together: a moment says little.
        """
        through = self._finished_since >= num_live
        if not through and self._preempted <= MANY_PREEMPTED * num_live:
            return 1.0
        correction = 1.0
        mean_use = sum(self._uses) / len(self._uses)
        if self._preempted > MOST_PREEMPTED * self._finished_since:
            correction = SHRINK
        elif self.bound and mean_use < GROW_BELOW_USE and self.cap <= num_live:
            correction = min(GROW_MOST, max(GROW, GROW_BELOW_USE / max(0.01, mean_use)))
        self._uses.clear()
        self._finished_since = self._preempted = 0
        return correction

    def _measure_sharing(self, gauges: EngineGauges, live: Sequence[LiveRow]) -> None:
        """Tokens that the pool holds, by those that the running rows have each by itself."""
        if gauges.kv_use < LEAST_USE_TO_MEASURE or not gauges.running:
            return
        apart = max(1, held_tokens(live[: gauges.running]))
        low, high = SHARING_RANGE
        self._sharing = min(high, max(low, gauges.kv_use * self._kv_tokens / apart))
