"""Lengths that nobody knows: a row's true length as a function of its prompt, and when it is reached."""

from __future__ import annotations

import json
import math
import os
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from statistics import NormalDist

VARIABLE = "BATCHWRIGHT_BENCHMARK_LENGTHS"
PROCESSOR = "benchmarks.throughput.hidden:HiddenLengths"
# The runner of vLLM that takes it; `hidden.py` says more.
RUNNER = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Lengths:
    """A lognormal law, from which every prompt's tokens draw the answer's length.

    Nothing about a row has to travel to where its answer is ended: the prompt is there.

    Attributes:
        median: of the lengths.
        sigma: of their logarithms.
        longest: the cap, which is all that a system is told.
        seed: another one gives the same prompts other lengths.
    """

    median: float
    sigma: float
    longest: int
    seed: int = 0

    def of(self, token_ids: Iterable[int]) -> int:
        """The true length of the answer to this prompt."""
        key = self.seed.to_bytes(8, "little")
        digest = blake2b(array("I", token_ids).tobytes(), digest_size=8, key=key).digest()
        share = (int.from_bytes(digest, "little") + 0.5) / 2**64
        drawn = round(math.exp(math.log(self.median) + self.sigma * NORMAL.inv_cdf(share)))
        return max(1, min(self.longest, drawn))

    def as_environment(self) -> dict[str, str]:
        """The law as an environment variable, which an engine's processes inherit."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> Lengths:
        """The law that `as_environment` wrote."""
        return cls(**json.loads(os.environ[VARIABLE]))


@dataclass(slots=True, eq=False)
class Tracked:
    """A row in the engine's batch.

    Attributes:
        length: its true length.
        output: its tokens so far, a list that the engine goes on filling.
        end_token: what ends it.
        index: its place in the batch.
    """

    length: int
    output: Sequence[int]
    end_token: int
    index: int = -1

    @property
    def missing(self) -> int:
        """Tokens before the one that has to be the last."""
        return self.length - 1 - len(self.output)


class Endings:
    """Finds the rows whose next token is their last, without looking at all rows in every step.

    A row gets at most one token a step, so one that misses `n` is looked at again `n` steps later.

    Attributes:
        rows: of the batch, by their index; whoever holds it keeps it up to date.
    """

    def __init__(self) -> None:
        self.rows: dict[int, Tracked] = {}
        self._due: defaultdict[int, list[Tracked]] = defaultdict(list)
        self._step = 0

    def moved(self) -> None:
        """Rows have come, gone or changed places."""
        for index, row in self.rows.items():
            if row.index < 0:
                self._due[self._step].append(row)
            row.index = index

    def next_step(self) -> list[Tracked]:
        """The rows that have to end in the step that is about to be made."""
        ending = []
        for row in self._due.pop(self._step, ()):
            if self.rows.get(row.index) is not row or row.missing < 0:
                continue  # it has left, or waits for the engine to see that it is over
            if row.missing == 0:
                ending.append(row)
            # One that should end may get no token yet: a part of its prompt is computed first.
            self._due[self._step + max(1, row.missing)].append(row)
        self._step += 1
        return ending
