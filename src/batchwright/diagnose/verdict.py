"""What a worker's time went to, in one word each, and the diagnosis of a whole run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from batchwright.core.findings import Finding, Weight
from batchwright.diagnose.evidence import Evidence, WorkerEvidence
from batchwright.diagnose.figures import over_time, percent
from batchwright.diagnose.rules import find
from batchwright.diagnose.rules_host import NEARLY_FULL, host_bound_workers
from batchwright.diagnose.rules_time import LEAST_START_UP_S, LEAST_TAIL_S

# What takes less than a tenth of the time is not what holds a worker up.
LEAST_SHARE = 0.10


class Bound(StrEnum):
    """What would have to be faster."""

    START_UP = "start-up"
    PREPARE = "prep-bound"
    MEDIA = "media-bound"
    WRITE = "write-bound"
    TAIL = "tail"
    KV = "KV-bound"
    HOST = "host-bound"
    ENGINE = "engine-bound"
    SHORT = "too short to say"


class Verdict(NamedTuple):
    """A worker's: what it was bound by, and the share of its time; None for what is no loss."""

    worker: str
    bound: Bound
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with a run, and what is known of it if nothing is.

    Attributes:
        findings: what matters most first.
        verdicts: of each worker.
        figures: of the run, by name.
        unknown: what could not be looked at, a sentence each.
    """

    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]
    figures: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...] = ()

    @property
    def costs(self) -> bool:
        """Whether anything has cost rows, time or money, hints apart."""
        return any(one.weight != Weight.HINT for one in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "findings": [one.as_json() for one in self.findings],
            "verdicts": [one._asdict() for one in self.verdicts],
            "figures": dict(self.figures),
            "unknown": list(self.unknown),
        }


def diagnose(evidence: Evidence) -> Diagnosis:
    """Hold all rules against what a run left."""
    return Diagnosis(
        findings=tuple(find(evidence)),
        verdicts=tuple(judge(one, evidence) for one in evidence.workers),
        figures=run_figures(evidence),
        unknown=evidence.unknown,
    )


def judge(worker: WorkerEvidence, evidence: Evidence) -> Verdict:
    """What one worker's time went to: the largest loss, else what the engine itself is bound by."""
    if not worker.reliable:
        return Verdict(worker.name, Bound.SHORT)
    start_up = worker.start_up_s or 0.0
    whole = start_up + worker.seconds + worker.idle_s
    end = worker.tail_s + worker.idle_s
    losses = {
        Bound.START_UP: start_up / whole if start_up >= LEAST_START_UP_S else 0.0,
        Bound.PREPARE: worker.starved * worker.seconds / whole,
        Bound.MEDIA: worker.media * worker.seconds / whole,
        Bound.WRITE: worker.commit_wait * worker.seconds / whole,
        Bound.TAIL: end / whole if end >= LEAST_TAIL_S else 0.0,
    }
    largest = max(losses, key=lambda one: losses[one])
    if losses[largest] >= LEAST_SHARE:
        return Verdict(worker.name, largest, losses[largest])
    if worker.kv_use >= NEARLY_FULL:
        return Verdict(worker.name, Bound.KV)
    if worker in host_bound_workers(evidence):
        return Verdict(worker.name, Bound.HOST)
    return Verdict(worker.name, Bound.ENGINE)


def run_figures(evidence: Evidence) -> tuple[tuple[str, str], ...]:
    """What a healthy run is told to have been like; what nobody knows is left out."""
    workers = evidence.reliable or evidence.workers
    found = [("workers", f"{len(evidence.workers)}")] if evidence.workers else []
    uses = [one.card_use for one in workers if one.card_use is not None]
    if uses:
        found.append(("GPU use", percent(sum(uses) / len(uses))))
    if evidence.reliable:
        found.append(("engine starved", percent(over_time(workers, lambda one: one.starved))))
        media = over_time(workers, lambda one: one.media)
        if media:
            found.append(("waited for media", percent(media)))
        found.append(
            ("waited for commits", percent(over_time(workers, lambda one: one.commit_wait)))
        )
        if any(one.kv_use for one in workers):
            found.append(("KV cache in use", percent(over_time(workers, lambda one: one.kv_use))))
        preemptions = sum(one.preemptions for one in workers)
        found.append(("preemptions", f"{preemptions:,}"))
    seconds = sum(one.seconds for one in workers) / max(1, len(workers))
    if seconds:
        found.append(("rows/s", f"{sum(one.rows for one in workers) / seconds:,.1f}"))
    if evidence.answers.rows:
        found.append(("answers", f"{evidence.answers.rows:,}"))
    return tuple(found)


def verdict_line(verdict: Verdict) -> str:
    """`infer-host-1: prep-bound (37 % of its time)`."""
    share = "" if verdict.share is None else f" ({percent(verdict.share)} of its time)"
    return f"{verdict.worker}: {verdict.bound}{share}"
