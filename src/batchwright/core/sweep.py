"""Words of the sweep: settings tried around the run's own, what each made, and what is kept.

Times are seconds, rates are per second, shares are from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from batchwright.core.workload import LengthHistogram

# By the engine's names, but for the last: engines that share one card.
SWEPT = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "cudagraph_capture_sizes",
    "max_cudagraph_capture_size",
    "engines_per_gpu",
)


@dataclass(frozen=True, slots=True)
class Change:
    """One setting to try that needs an engine of its own.

    Attributes:
        name: one of `SWEPT`.
        value: of the setting, for people and for the job file.
        options: the engine's options that it means.
        engines: that share the card.
    """

    name: str
    value: Any
    options: Mapping[str, Any]
    engines: int = 1


class Reading(NamedTuple):
    """What all engines on a card made together; `kv_use` is the fullest cache's peak."""

    seconds: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    kv_use: float
    preemptions: int


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """What an engine made in steady work with some settings.

    Attributes:
        settings: `max_num_seqs`, and what else differs from the run's own settings.
        rows_per_s: rows of the pilot's mean length.
        prompt_tokens_per_s: computed; those that the prefix cache saved do not count.
        output_tokens_per_s: of all engines on the card.
        kv_use: share of the KV cache in use, at its peak.
        preemptions: while this was measured, its warm-up included.
        seconds: that were measured.
        start_up_s: of the engine; 0 when one that ran already was used.
    """

    settings: Mapping[str, Any]
    rows_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    kv_use: float
    preemptions: int
    seconds: float
    start_up_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Computed prompt tokens and output tokens: what points are compared by."""
        return self.prompt_tokens_per_s + self.output_tokens_per_s


@dataclass(frozen=True, slots=True)
class SweepReport:
    """All points of a sweep, and which of them is kept.

    Attributes:
        points: in the order in which they were measured.
        reference: index of the point that the others are held against: the run's own settings,
            or the last `max_num_seqs` before the cache was full.
        kept: index of the best point.
        skipped: what was not measured, and why, in words.
        seconds: that the sweep took.
        device: the card's name, or `cpu`.
        engine: its name and version.
    """

    points: tuple[SweepPoint, ...]
    reference: int
    kept: int
    skipped: tuple[str, ...]
    seconds: float
    device: str
    engine: str

    @property
    def best(self) -> SweepPoint:
        """The point that is kept."""
        return self.points[self.kept]

    def worth(self, point: SweepPoint) -> float:
        """How much faster than the reference: 0.07 is 7 %."""
        return point.tokens_per_s / max(1e-9, self.points[self.reference].tokens_per_s) - 1

    def as_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "kept": dict(self.best.settings),
            "worth": round(self.worth(self.best), 4),
            "points": [
                {**asdict(point), "worth": round(self.worth(point), 4)} for point in self.points
            ],
            "reference": self.reference,
            "skipped": list(self.skipped),
            "seconds": round(self.seconds, 1),
            "device": self.device,
            "engine": self.engine,
        }


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of work, coarse enough to meet again: each field is a power of two."""

    prompt_mean: int
    prompt_p99: int
    max_tokens: int

    @classmethod
    def of(cls, prompts: LengthHistogram, max_tokens: int) -> Shape:
        """The shape of rows with these prompts and this output cap."""
        return cls(bucket(prompts.mean), bucket(prompts.quantile(0.99)), bucket(max_tokens))


def bucket(tokens: float) -> int:
    """The largest power of two that is not more; 1 at least."""
    return 1 << (max(1, int(tokens)).bit_length() - 1)


@dataclass(frozen=True, slots=True)
class SweepKey:
    """What a sweep's outcome holds for. `options` is a digest of the user's other options."""

    engine: str
    model: str
    device: str
    dtype: str
    options: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class RememberedSweep:
    """The outcome of a sweep, as it is kept for later plans.

    Attributes:
        key: what it holds for.
        output_mean: power of two of the mean output tokens, which no plan knows before a pilot.
        measured_on: date, `2026-01-31`.
        engine: name and version.
        gpus: cards of the engine (tensor x pipeline parallel).
        settings: what was kept.
        reference: settings that it was held against.
        worth: how much faster it was.
        points: for reading.
    """

    key: SweepKey
    output_mean: int
    measured_on: str
    engine: str
    gpus: int
    settings: dict[str, Any]
    reference: dict[str, Any]
    worth: float
    points: list[dict[str, Any]] = field(default_factory=list)

    def why(self, name: str) -> str:
        """The reason for one of the settings: `measured on 2026-01-31: +7 % against 256`."""
        before = self.reference.get(name)
        against = "the engine's own" if before is None else f"{before:,}" if isinstance(
            before, int
        ) else "the plan's own"  # fmt: skip
        return (
            f"measured on {self.measured_on} by a sweep ({self.engine}): all of its settings "
            f"together {self.worth:+.0%}, this one in place of {against}"
        )
