"""Readings of a made-up worker, as its telemetry would have them."""

from __future__ import annotations

from collections.abc import Callable

from batchwright.core.ports import EngineGauges
from batchwright.core.readings import (
    CardReading,
    FeedReading,
    PrepareReading,
    ProcessReading,
    Reading,
)

EVERY_S = 2.0
BEGUN_AT = 1_000.0

CARD = CardReading(
    0, use=0.95, memory_bytes=70 << 30, memory_total_bytes=80 << 30, others_bytes=0,
    power_w=600, power_limit_w=700, sm_mhz=1750, sm_max_mhz=1980, temperature_c=65,
)  # fmt: skip


def infer_readings(
    worker: str = "infer-1",
    *,
    seconds: float = 120.0,
    start_up_s: float = 10.0,
    begun_at: float = BEGUN_AT,
    running: int = 250,
    slots: int = 256,
    cap: int | None = None,
    kv_use: float = 0.7,
    rows_per_s: float = 40.0,
    prompt: int = 300,
    output: int = 100,
    step_s: float = 0.05,
    preemptions_per_s: float = 0.0,
    starved: float = 0.0,
    starved_at_start_s: float = 0.0,
    media: float = 0.0,
    commit_wait: float = 0.0,
    core: float = 0.6,
    tail_s: float = 0.0,
    tail_running: int = 5,
    slowing: float = 0.0,
    cards: tuple[CardReading, ...] = (CARD,),
    card_of: Callable[[CardReading], CardReading] = lambda card: card,
    host: str = "node-1",
) -> list[Reading]:
    """A worker that starts, works for `seconds` and then has a tail of `tail_s`.

    `starved`, `media` and `commit_wait` are shares of the work; `slowing` is the share of its
    rate that it loses from the first reading to the last.
    """
    shown = tuple(card_of(card) for card in cards)
    found = [
        Reading(begun_at, worker, host=host, phase="starting the engine", cards=shown),
        Reading(
            begun_at + start_up_s, worker, host=host, phase="running", cards=shown,
            engine=EngineGauges(),
            feed=FeedReading(0, cap or slots, slots, starved_s=starved_at_start_s),
        ),
    ]  # fmt: skip
    count = round(seconds / EVERY_S)
    rows = work_s = 0.0
    for number in range(count + round(tail_s / EVERY_S) + 1):
        in_tail = number > count
        active = tail_running if in_tail else running
        at = begun_at + start_up_s + EVERY_S * number
        speed = (1 - slowing * number / max(1, count)) * (active / max(1, running))
        rows += rows_per_s * EVERY_S * speed if number else 0.0
        work_s = min(number * EVERY_S, seconds)
        found.append(
            Reading(
                at + 0.1, worker, host=host, phase="running", rows=round(rows),
                prompt_tokens=round(rows * prompt), completion_tokens=round(rows * output),
                engine=EngineGauges(
                    running=active, kv_use=kv_use, steps=round(number * EVERY_S / step_s),
                    preemptions=round(preemptions_per_s * work_s),
                    prompt_tokens=round(rows * prompt), output_tokens=round(rows * output),
                ),
                feed=FeedReading(
                    active, cap or slots, slots,
                    starved_s=starved_at_start_s + starved * work_s, media_s=media * work_s,
                    commit_wait_s=commit_wait * work_s, committed_bytes=round(1000 * rows),
                ),
                process=ProcessReading(
                    0.2 * number, core * EVERY_S * number, core * EVERY_S * number
                ),
                cards=shown,
            )
        )  # fmt: skip
    return found


def prepare_readings(
    worker: str = "prepare-1",
    *,
    rows: int = 50_000,
    read_s: float = 1.0,
    tokenize_s: float = 1.0,
    write_s: float = 0.1,
    idle_s: float = 0.0,
) -> list[Reading]:
    """The last reading of a process that prepares."""
    spent = PrepareReading(rows, 300 * rows, read_s, tokenize_s, write_s, idle_s)
    return [Reading(BEGUN_AT + 100, worker, role="prepare", host="node-1", prepare=spent)]
