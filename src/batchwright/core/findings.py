"""Words of the diagnosis: what held a run up or broke it, how that is known, and what to change."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Weight(StrEnum):
    """How much a finding matters, most first."""

    BROKEN = "broken"  # rows or the run were lost to it
    LOSS = "loss"  # time or money was
    HINT = "hint"  # nothing was yet


@dataclass(frozen=True, slots=True)
class Change:
    """One setting of the job: by its name in the job file, what it is and what it should be."""

    setting: str
    now: str
    to: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        code: its name, for people and scripts; a page of the docs has the same one.
        title: what is the matter, in a few words.
        weight: how much it matters.
        evidence: names and figures that it rests on, in the order in which they convince.
        cause: why it is so, in a sentence or two.
        remedy: what to do, in a sentence.
        changes: of settings, where there is one to change.
        gain: share of the run's time that the change would save, 0 to 1; None if it cannot be
            computed.
        worker: whose it is; None if it is the run's.
    """

    code: str
    title: str
    weight: Weight
    evidence: tuple[tuple[str, str], ...]
    cause: str
    remedy: str
    changes: tuple[Change, ...] = ()
    gain: float | None = None
    worker: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def by_importance(findings: list[Finding]) -> list[Finding]:
    """What broke the run first, then what cost most."""
    weights = list(Weight)
    return sorted(findings, key=lambda one: (weights.index(one.weight), -(one.gain or 0.0)))
