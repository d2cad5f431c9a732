"""Words of metrics: what is known of a run when it is scraped, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from batchwright.core.readings import Reading
from batchwright.running.drive import Progress

Kind = Literal["counter", "gauge"]

# Labels besides those that every sample of its kind has, and the value; None is not shown.
Value = tuple[dict[str, str], float | None]


@dataclass(frozen=True, slots=True)
class WorkerLook:
    """A worker: its last heartbeat, and its newest reading in it."""

    name: str
    heartbeat: Mapping[str, Any]
    reading: Reading | None = None

    @property
    def lives(self) -> bool:
        """Whether it has not ended, as far as it says."""
        return not self.heartbeat.get("ended")

    @property
    def role(self) -> str:
        """What it does."""
        return str(self.heartbeat.get("role", ""))


@dataclass(frozen=True, slots=True)
class Look:
    """A run at a moment.

    Attributes:
        run: its name: the last part of its folder.
        about: what does not change: model, engine, and so on.
        started_at: Unix time at which the process that tells began.
        progress: how far the run is; None before the first look.
        estimated_s: what its pilot says that the whole takes.
        limit_s: what the job file says that it may take.
        workers: those that have given a sign of life since then.
    """

    run: str
    about: Mapping[str, str]
    started_at: float
    progress: Progress | None = None
    estimated_s: float | None = None
    limit_s: float | None = None
    workers: tuple[WorkerLook, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name as it is shown (a counter's ends in `_total`), and how it is found."""

    name: str
    kind: Kind
    text: str
    values: Callable[[Look], Iterable[Value]]
