"""What a report shows of time: curves of each worker, where the engines' hours went, how near the limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean

from batchwright.core.losses import PREEMPTED_AT, Balance, EngineTime, balance, engine_losses
from batchwright.core.plan import Plan
from batchwright.core.readings import Reading
from batchwright.core.records import Receipt
from batchwright.core.report import Chart, Lengths
from batchwright.core.series import (
    Value,
    few,
    gauge_curve,
    rate_curve,
    spread_out,
    total_curve,
)
from batchwright.core.workload import Workload
from batchwright.plan.limit import find_limit
from batchwright.plan.memory import Sizes

# A drawing is 300 pixels wide; and readings are 2 s apart.
POINTS = 150
MOST_READINGS = 600
MOST_CURVES = 5


@dataclass(frozen=True, slots=True)
class Watched:
    """A worker's name in the report, when it was there, what it noted of itself, when its tail ends.

    That is when the last row of the run came out; None if it did not end for want of rows.
    """

    name: str
    time: EngineTime
    readings: Sequence[Reading]
    tail_ends_at: float | None = None


def card_use(reading: Reading) -> float | None:
    """Mean use of the worker's cards."""
    uses = [card.use for card in reading.cards if card.use is not None]
    return fmean(uses) if uses else None


def card_power_w(reading: Reading) -> float | None:
    """Power that the worker's cards take together."""
    powers = [card.power_w for card in reading.cards if card.power_w is not None]
    return sum(powers) if powers else None


def running(reading: Reading) -> float | None:
    """Rows that run in the engine."""
    return None if reading.engine is None else reading.engine.running


def kv_use(reading: Reading) -> float | None:
    """Share of the KV cache in use."""
    return None if reading.engine is None else reading.engine.kv_use


def starved_s(reading: Reading) -> float | None:
    """Seconds without a prepared row so far."""
    return None if reading.feed is None else reading.feed.starved_s


def cpu_use(reading: Reading) -> float | None:
    """Share of the machine's cores in use."""
    return None if reading.node is None else reading.node.cpu_use


# Title, unit, what is read, and whether it grows.
_CURVES: tuple[tuple[str, str, Value, bool], ...] = (
    ("Rows", "rows/s", lambda one: one.rows, True),
    ("Output tokens", "tokens/s", lambda one: one.completion_tokens, True),
    ("Prompt tokens", "tokens/s", lambda one: one.prompt_tokens, True),
    ("Rows running in the engine", "rows", running, False),
    ("KV cache in use", "share", kv_use, False),
    ("GPUs busy", "share", card_use, False),
    ("GPU power", "W", card_power_w, False),
    ("No prepared row at hand", "share", starved_s, True),
    ("CPU of the machine in use", "share", cpu_use, False),
)


def charts(workers: Sequence[Watched], receipts: Iterable[Receipt], since: float) -> list[Chart]:
    """Everything that is known over time; of the chunks where there is no telemetry."""
    found = []
    for title, unit, value, grows in _CURVES:
        make = rate_curve if grows else gauge_curve
        every = [
            make(one.readings, value, since=since, most=POINTS, name=one.name) for one in workers
        ]
        known = [one for one in every if any(one.known)]
        if not known:
            continue
        if len(known) > 1 and unit.endswith("/s"):
            total = total_curve(known, POINTS, "all")
            found.append(Chart(f"{title}, all workers", unit, (total,)))
        found.append(Chart(title, unit, tuple(few(known, MOST_CURVES, POINTS))))
    return found or _of_chunks(receipts, since)


def _of_chunks(receipts: Iterable[Receipt], since: float) -> list[Chart]:
    """Rows of each chunk, as if they had come evenly while it was in work."""
    timed = [one for one in receipts if one.finished_at and one.seconds]
    if not timed:
        return []
    spans = [(r.finished_at - r.seconds - since, r.finished_at - since, r.rows) for r in timed]
    return [Chart("Rows, by chunks", "rows/s", (spread_out(spans, POINTS // 3, "all"),))]


def time_balance(
    workers: Sequence[Watched], plan: Plan | None, lengths: Lengths, work: WorkDone
) -> Balance | None:
    """Where the time of all engines went; None before the first of them."""
    total_s = sum(one.time.seconds for one in workers)
    if not total_s or not any(one.time.up_at is not None for one in workers):
        return None
    mean = lengths.prompts.mean + PREEMPTED_AT * lengths.outputs.mean
    losses = [engine_losses(one.time, one.readings, mean, one.tail_ends_at) for one in workers]
    if plan is None or not lengths.prompts.rows:
        return balance(total_s, losses)
    cached = lengths.cached_tokens / max(1, lengths.prompts.total)
    best = None
    if work.best_cached_share is not None:
        best = _limit_s(plan, lengths, work, max(cached, work.best_cached_share))
    return balance(total_s, losses, _limit_s(plan, lengths, work, cached), best)


@dataclass(frozen=True, slots=True)
class WorkDone:
    """What the engines have done.

    Attributes:
        rows: that have an answer.
        samples: answers to each.
        best_cached_share: of the prompt tokens that the prefix cache would have saved in the best
            order; None if nobody looked.
    """

    rows: int
    samples: int = 1
    best_cached_share: float | None = None


def _limit_s(plan: Plan, lengths: Lengths, work: WorkDone, cached_share: float) -> float:
    """Seconds of one engine at the limit of its cards, for the rows that are done (L1)."""
    factor = work.rows / lengths.prompts.rows
    times = max(1, round(factor))
    workload = Workload(
        prompts=lengths.prompts.times(times),
        outputs=lengths.outputs.times(times),
        max_tokens=max(1, lengths.outputs.longest),
        cached_share=min(0.99, cached_share),
    ).in_samples(work.samples)
    limit = find_limit(
        plan.model,
        plan.gpu,
        workload,
        sizes=_sizes(plan),
        rows_in_cache=plan.max_concurrent_rows,
    )
    return limit.l1_s * factor / times


def _sizes(plan: Plan) -> Sizes:
    """The plan's settings that the limit depends on."""
    known: Mapping[str, object] = {
        name: setting.value for name, setting in plan.settings.items() if setting.value is not None
    }
    names = [field.name for field in fields(Sizes)]
    given = {name: known[name] for name in names if isinstance(known.get(name), int | float)}
    needed = {"max_model_len": 1, "max_num_seqs": 256, "max_num_batched_tokens": 8_192}
    return Sizes(**{**needed, **given})  # type: ignore[arg-type]
