"""Readings of a worker to what they say of its work: start-up, idle time and the tail set apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from batchwright.core.readings import CardReading, PrepareReading, Reading
from batchwright.core.tail import find_last_row, find_tail
from batchwright.diagnose.evidence import (
    CardEvidence,
    HostEvidence,
    PrepareEvidence,
    WorkerEvidence,
)

# An output token is about as much work as two prompt tokens: see `plan.gate.OUTPUT_WEIGHT`.
OUTPUT_WEIGHT = 2.0

# Slots are taken if no more than this share is free: a row that ends leaves one for a moment.
FULL_FROM = 0.95

# A line through steps of different sizes needs so many of them, and sizes so far apart.
STEPS_FOR_LINE = 8
SPREAD_FOR_LINE = 2.0


def working_time(readings: Sequence[Reading]) -> tuple[Reading, ...]:
    """The readings from the first row in to the last one out; none if no row came out."""
    first = next((n for n, one in enumerate(readings) if _has_rows(one)), None)
    end = find_last_row(readings)
    if first is None or end <= readings[first].at:
        return ()
    return tuple(one for one in readings[first:] if one.at <= end)


def _has_rows(reading: Reading) -> bool:
    engine, feed = reading.engine, reading.feed
    inside = (engine.running + engine.waiting if engine else 0) + (feed.in_flight if feed else 0)
    return reading.rows > 0 or inside > 0


def worker_evidence(
    name: str,
    readings: Sequence[Reading],
    *,
    tail_ends_at: float | None = None,
    start_up_s: float | None = None,
    device: str = "",
    kv_tokens: int = 0,
) -> WorkerEvidence | None:
    """What the readings of one worker say; None if it had no work.

    Args:
        name: of the worker.
        readings: of its role `infer`, oldest first.
        tail_ends_at: when the last row of the whole run came out; None if the engine did not end
            for want of rows, and so has no tail.
        start_up_s: until its engine was up.
        device: of the engine.
        kv_tokens: that its KV cache holds.
    """
    span = working_time(readings)
    if not span:
        return None
    tail = find_tail(span, tail_ends_at or 0.0)
    found = WorkerEvidence(
        name=name,
        host=span[0].host,
        device=device,
        seconds=_seconds(span),
        start_up_s=start_up_s,
        idle_s=0.0 if tail_ends_at is None else tail.idle_s,
        tail_s=0.0 if tail_ends_at is None else tail.draining_s,
        kv_tokens=kv_tokens,
    )
    steady = [one for one in span if one.at <= tail.begins_at]
    return _with_batch(_with_times(found, span), span, steady)


def _with_times(found: WorkerEvidence, span: Sequence[Reading]) -> WorkerEvidence:
    """What the whole time from the first row to the last went to, and what came of it."""
    seconds = _seconds(span)
    return replace(
        found,
        starved=_share(span, seconds, lambda one: one.feed.starved_s if one.feed else 0.0),
        media=_share(span, seconds, lambda one: one.feed.media_s if one.feed else 0.0),
        commit_wait=_share(span, seconds, lambda one: one.feed.commit_wait_s if one.feed else 0.0),
        rows=span[-1].rows,
        preemptions=int(_growth(span, lambda one: one.engine.preemptions if one.engine else 0)),
        computed_prompt_tokens=int(_growth(span, _computed_prompt)),
        output_tokens=int(_growth(span, _made)),
        committed_bytes_s=_share(
            span, seconds, lambda one: float(one.feed.committed_bytes) if one.feed else 0.0
        ),
    )


def _with_batch(
    found: WorkerEvidence, span: Sequence[Reading], steady: Sequence[Reading]
) -> WorkerEvidence:
    """What the engine was like before the tail."""
    known = [one.engine for one in steady if one.engine]
    slots = max((one.feed.max_num_seqs for one in span if one.feed), default=0)
    running = [_running(one) for one in steady]
    return replace(
        found,
        tokens_per_s=_rate(steady),
        running=max(_mean(running), min(slots, _rows_a_step(steady))),
        cap=_mean([one.feed.cap for one in steady if one.feed]),
        max_num_seqs=slots,
        full=_full(steady, slots),
        kv_use=_mean([one.kv_use for one in known]),
        kv_peak=max((_kv_peak(one) for one in steady), default=0.0),
        step_s=_step_s(steady),
        fixed_step=fixed_share(_steps(span), _mean(running)),
        busiest_core=_busiest_core(steady),
        quarters=_quarters(steady),
        cards=_cards(steady),
    )


def fixed_share(steps: Sequence[tuple[float, float]], running: float) -> float | None:
    """Share of a step with `running` rows that does not depend on them: a line through all steps.

    Args:
        steps: (rows that ran, seconds of a step) of each stretch between two readings.
        running: rows of the step in question.
    """
    rows = [one for one, _ in steps]
    if len(steps) < STEPS_FOR_LINE or max(rows) < SPREAD_FOR_LINE * max(1.0, min(rows)):
        return None
    mean_rows, mean_s = _mean(rows), _mean([one for _, one in steps])
    spread = sum((one - mean_rows) ** 2 for one in rows)
    slope = sum((one - mean_rows) * (took - mean_s) for one, took in steps) / spread
    whole = mean_s + slope * (running - mean_rows)
    fixed = mean_s - slope * mean_rows
    return min(1.0, max(0.0, fixed / whole)) if whole > 0 else None


def prepare_evidence(readings: Sequence[Sequence[Reading]]) -> PrepareEvidence | None:
    """The processes that prepare, by the last reading of each; None if none left one."""
    last = [_last_prepare(one) for one in readings]
    found = [one for one in last if one is not None]
    if not found:
        return None
    return PrepareEvidence(
        processes=len(found),
        rows=sum(one.rows for one in found),
        tokens=sum(one.tokens for one in found),
        read_s=sum(one.read_s for one in found),
        tokenize_s=sum(one.tokenize_s for one in found),
        write_s=sum(one.write_s for one in found),
        idle_s=sum(one.idle_s for one in found),
    )


def _last_prepare(readings: Sequence[Reading]) -> PrepareReading | None:
    return next((one.prepare for one in reversed(readings) if one.prepare), None)


def host_evidence(readings: Sequence[Reading]) -> tuple[HostEvidence, ...]:
    """The machines of some readings, at their fullest."""
    found: dict[str, HostEvidence] = {}
    for one in readings:
        if one.node is None:
            continue
        before = found.get(one.host)
        if before is None or (one.node.shm_bytes or 0) >= (before.shm_bytes or 0):
            found[one.host] = HostEvidence(
                one.host, one.node.cores, one.node.shm_bytes, one.node.shm_total_bytes
            )
    return tuple(found.values())


def _cards(readings: Sequence[Reading]) -> tuple[CardEvidence, ...]:
    by_index: dict[int, list[CardReading]] = {}
    for one in readings:
        for card in one.cards:
            by_index.setdefault(card.index, []).append(card)
    seconds = _seconds(readings)
    return tuple(_card(index, found, seconds) for index, found in sorted(by_index.items()))


def _card(index: int, readings: Sequence[CardReading], seconds: float) -> CardEvidence:
    clocks = [one.sm_mhz / one.sm_max_mhz for one in readings if one.sm_mhz and one.sm_max_mhz]
    reasons = {reason for one in readings for reason in one.throttled}
    links = [one.nvlink_bytes for one in readings if one.nvlink_bytes is not None]
    both_ways = [
        max(one.pcie_received_bytes_s or 0, one.pcie_sent_bytes_s or 0) for one in readings
    ]
    uses = [one.use for one in readings if one.use is not None]
    return CardEvidence(
        index=index,
        use=_mean(uses) if uses else None,
        clock=_mean(clocks) if clocks else None,
        throttled={
            reason: _mean([float(reason in one.throttled) for one in readings])
            for reason in sorted(reasons)
        },
        others_bytes=max((one.others_bytes or 0 for one in readings), default=0),
        total_bytes=max((one.memory_total_bytes or 0 for one in readings), default=0) or None,
        link_bytes_s=_mean([float(one) for one in both_ways]),
        nvlink_bytes_s=(links[-1] - links[0]) / seconds if links and seconds else None,
        temperature_c=max(
            (one.temperature_c for one in readings if one.temperature_c), default=None
        ),
    )


def _quarters(readings: Sequence[Reading]) -> tuple[float, ...]:
    if len(readings) < 8:
        return ()
    bounds = [round(part * (len(readings) - 1) / 4) for part in range(5)]
    return tuple(_rate(readings[low : high + 1]) for low, high in pairwise(bounds))


def _rate(readings: Sequence[Reading]) -> float:
    seconds = _seconds(readings)
    work = _growth(readings, _computed_prompt) + OUTPUT_WEIGHT * _growth(readings, _made)
    return work / seconds if seconds else 0.0


def _steps(readings: Sequence[Reading]) -> list[tuple[float, float]]:
    found = []
    for before, after in pairwise(readings):
        steps = _growth((before, after), lambda one: one.engine.steps if one.engine else 0)
        if steps >= 1 and _running(after) > 0:
            rows = 0.5 * (_running(before) + _running(after))
            found.append((rows, (after.at - before.at) / steps))
    return found


def _rows_a_step(readings: Sequence[Reading]) -> float:
    """Rows that got a token in a step, on average; 0 where a step can give a row several.

    Rows of one length end together, and readings often fall on the moment before the next are in.
    While prompts are read there are fewer of them than rows that run.
    """
    if any(one.engine.drafted_tokens for one in readings if one.engine):
        return 0.0
    steps = _growth(readings, lambda one: one.engine.steps if one.engine else 0)
    return _growth(readings, _made) / steps if steps else 0.0


def _full(readings: Sequence[Reading], slots: int) -> float:
    """Share of the readings at which, or since the one before, nearly all slots were taken."""
    if not slots or not readings:
        return 0.0
    since = [0.0, *(_rows_a_step(pair) for pair in pairwise(readings))]
    rows = [max(_running(one), mean) for one, mean in zip(readings, since, strict=True)]
    return _mean([float(one >= FULL_FROM * slots) for one in rows])


def _step_s(readings: Sequence[Reading]) -> float | None:
    steps = _growth(readings, lambda one: one.engine.steps if one.engine else 0)
    return _seconds(readings) / steps if steps else None


def _busiest_core(readings: Sequence[Reading]) -> float | None:
    known = [one for one in readings if one.process]
    seconds = _seconds(known)
    if not seconds:
        return None
    grown = _growth(known, lambda one: one.process.busiest_engine_cpu_s if one.process else 0.0)
    return grown / seconds


def _computed_prompt(reading: Reading) -> float:
    if reading.engine is not None:
        return reading.engine.prompt_tokens
    return max(0, reading.prompt_tokens - reading.cached_tokens)


def _made(reading: Reading) -> float:
    return reading.engine.output_tokens if reading.engine else reading.completion_tokens


def _growth(readings: Sequence[Reading], value: Callable[[Reading], float]) -> float:
    """By how much a counter grew; an engine that was restarted counts from 0 again."""
    return sum(
        after - before if after >= before else after
        for before, after in pairwise([value(one) for one in readings])
    )


def _share(readings: Sequence[Reading], seconds: float, value: Callable[[Reading], float]) -> float:
    return _growth(readings, value) / seconds if seconds else 0.0


def _kv_peak(reading: Reading) -> float:
    return max(reading.kv_peak, reading.engine.kv_use if reading.engine else 0.0)


def _running(reading: Reading) -> float:
    return float(reading.engine.running) if reading.engine else 0.0


def _seconds(readings: Sequence[Reading]) -> float:
    return readings[-1].at - readings[0].at if len(readings) > 1 else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
