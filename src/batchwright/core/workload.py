"""The work that a job asks for, as lengths: what the profile measures and the plan needs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)  # without slots: the sums are kept, since a search asks for them often
class LengthHistogram:
    """How many rows have how many tokens: ascending lengths and their counts, exact."""

    lengths: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    @classmethod
    def of(cls, values: Iterable[int]) -> LengthHistogram:
        """The histogram of single lengths."""
        found: dict[int, int] = {}
        for value in values:
            found[value] = found.get(value, 0) + 1
        ordered = sorted(found.items())
        return cls(tuple(length for length, _ in ordered), tuple(count for _, count in ordered))

    @cached_property
    def rows(self) -> int:
        """Rows in all."""
        return sum(self.counts)

    @cached_property
    def total(self) -> int:
        """Tokens in all."""
        return sum(n * count for n, count in zip(self.lengths, self.counts, strict=True))

    @property
    def mean(self) -> float:
        """Tokens per row; 0 if there are no rows."""
        return self.total / self.rows if self.counts else 0.0

    @property
    def spread(self) -> float:
        """Standard deviation as a share of the mean; 0 if there are no tokens."""
        if not self.total:
            return 0.0
        squares = sum(n * n * count for n, count in zip(self.lengths, self.counts, strict=True))
        return math.sqrt(max(0.0, squares / self.rows / self.mean**2 - 1))

    @property
    def longest(self) -> int:
        """The largest length; 0 if there are no rows."""
        return self.lengths[-1] if self.lengths else 0

    def times(self, factor: int) -> LengthHistogram:
        """The same lengths, each so many times as often."""
        return LengthHistogram(self.lengths, tuple(count * factor for count in self.counts))

    def quantile(self, share: float) -> int:
        """The smallest length that at least `share` of the rows do not exceed."""
        wanted = share * self.rows
        seen = 0
        for length, count in zip(self.lengths, self.counts, strict=True):
            seen += count
            if seen >= wanted:
                return length
        return self.longest


NO_LENGTHS = LengthHistogram()

# A longer cap is a guard as a rule, and half of it is planned for until answers are known: too many
# rows at a time cost preemptions, too few cost throughput in proportion.
SHORT_OUTPUT = 256


def guess_output(max_tokens: int) -> int:
    """Output tokens of a row of which nothing but its cap is known."""
    if max_tokens <= SHORT_OUTPUT:
        return max(1, max_tokens)
    return max(SHORT_OUTPUT, max_tokens // 2)


@dataclass(frozen=True, slots=True)
class Workload:
    """What has to be computed.

    Attributes:
        prompts: prompt tokens of the rows that will run.
        outputs: output tokens measured in a pilot; None before one, when the caps stand in.
        max_tokens: the largest output cap of any row.
        cached_share: share of prompt tokens that the prefix cache is expected to save, 0 to 1.
        caps: output caps of the rows; empty if all have `max_tokens`.
    """

    prompts: LengthHistogram
    outputs: LengthHistogram | None
    max_tokens: int
    cached_share: float = 0.0
    caps: LengthHistogram = NO_LENGTHS

    def in_samples(self, samples: int) -> Workload:
        """The workload of rows with `n` answers each, as sequences: what an engine runs at a time.

        A row's prompt is computed once, and `outputs` count all of its answers together.
        """
        if samples == 1:
            return self
        outputs = None
        if self.outputs is not None:
            shares: dict[int, int] = {}
            for length, count in zip(self.outputs.lengths, self.outputs.counts, strict=True):
                share = max(1, round(length / samples))
                shares[share] = shares.get(share, 0) + count * samples
            ordered = sorted(shares.items())
            outputs = LengthHistogram(
                tuple(one for one, _ in ordered), tuple(n for _, n in ordered)
            )
        return Workload(
            prompts=self.prompts.times(samples),
            outputs=outputs,
            max_tokens=self.max_tokens,
            cached_share=1.0 - (1.0 - self.cached_share) / samples,
            caps=self.caps.times(samples),
        )
