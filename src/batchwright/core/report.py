"""What a report shows of a run: facts only, gathered elsewhere and drawn elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from batchwright.core.failures import FailureGroup
from batchwright.core.losses import Balance
from batchwright.core.pilot import PilotReport
from batchwright.core.plan import Plan
from batchwright.core.series import Curve
from batchwright.core.workload import NO_LENGTHS, LengthHistogram


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One worker with an engine.

    Attributes:
        name: short, within the report.
        worker: its name in the run directory.
        host: its machine.
        device: of its engine.
        engine: name and version.
        hours: that it was there.
        start_up_s: until its engine took rows; None if it never did.
        rows: that have receipts of its.
        output_tokens: of these rows.
        state: `ended`, `running`, `gone` (killed), or `silent`.
    """

    name: str
    worker: str
    host: str
    device: str
    engine: str
    hours: float
    start_up_s: float | None
    rows: int
    output_tokens: int
    state: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One value over time.

    Attributes:
        title: what is shown.
        unit: of the values; `share` for 0 to 1.
        curves: one per worker, or the lowest, middle and highest of many.
    """

    title: str
    unit: str
    curves: tuple[Curve, ...]


ROW_DONE = "row, from the feeder to its answer"
ROW_BEGUN = "row, from the feeder to its first token"
CHUNK_DONE = "chunk, from its first row to its commit"


@dataclass(frozen=True, slots=True)
class Times:
    """How long something took: p50, p90, p99 and the longest, in seconds."""

    name: str
    p50_s: float
    p90_s: float
    p99_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class SlowChunk:
    """A chunk that took long."""

    name: str
    worker: str
    rows: int
    seconds: float
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Example:
    """A row without an answer, and why."""

    row: int
    id: str
    message: str


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of prompts and answers, of the rows that were looked at."""

    prompts: LengthHistogram = NO_LENGTHS
    outputs: LengthHistogram = NO_LENGTHS
    rows_seen: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Cost:
    """What the run took.

    Attributes:
        hours: in which a worker was there.
        card_hours: of all cards that were held; 0 where none was.
        cards: that each engine held.
        on_cards: whether the engines say that they ran on cards; else the hours are of machines.
        usd_per_card_hour: the price given; None if none was.
    """

    hours: float
    card_hours: float
    cards: int
    on_cards: bool
    usd_per_card_hour: float | None

    @property
    def usd(self) -> float | None:
        """None without a price, or without cards."""
        if self.usd_per_card_hour is None or not self.card_hours:
            return None
        return self.card_hours * self.usd_per_card_hour


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """A run as its report tells it.

    Attributes:
        run_dir: where it is.
        source: path or paths of the data.
        state: `finished`, `running` or `stopped`.
        task: what was asked of the model.
        makes_text: whether answers are text, and so have output tokens.
        began_at: Unix time of its first start; 0 if it has not begun.
        ended_at: of its last sign of life.
        rows: of the input, so far.
        rows_expected: of the whole input; an estimate while not all are read.
        ok: rows with an answer; failed and rejected likewise without one.
        truncated: answers that `max_tokens` ended.
        prompt_tokens: of the rows that are done; output and cached tokens likewise.
        wasted_rows: computed in vain.
        busy_s: from when the first chunk was begun to when the last one was done.
    """

    run_dir: str
    source: str | list[str]
    state: str
    task: str
    makes_text: bool
    began_at: float
    ended_at: float
    rows: int
    rows_expected: int
    ok: int
    failed: int
    rejected: int
    truncated: int
    prompt_tokens: int
    output_tokens: int
    wasted_rows: int
    busy_s: float
    cost: Cost
    workers: tuple[WorkerFacts, ...] = ()
    charts: tuple[Chart, ...] = ()
    times: tuple[Times, ...] = ()
    balance: Balance | None = None
    lengths: Lengths = Lengths()
    failures: tuple[FailureGroup, ...] = ()
    slow_chunks: tuple[SlowChunk, ...] = ()
    slow_rows: tuple[tuple[int, float], ...] = ()
    plan: Plan | None = None
    pilot: PilotReport | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    engine_options: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
