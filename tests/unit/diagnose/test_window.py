"""Readings become evidence: start-up, idle ends and tails are no fault of the work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchwright.core.ports import EngineGauges
from batchwright.core.readings import CardReading, HostReading, Reading
from batchwright.core.tail import find_last_row
from batchwright.diagnose.window import (
    fixed_share,
    host_evidence,
    prepare_evidence,
    worker_evidence,
    working_time,
)
from tests.support.readings import CARD, infer_readings, prepare_readings


def test_a_worker_that_had_no_row_has_no_evidence() -> None:
    assert worker_evidence("w", []) is None
    assert worker_evidence("w", infer_readings()[:2]) is None


def test_the_work_is_measured_without_the_start() -> None:
    found = worker_evidence("w", infer_readings(starved_at_start_s=9), tail_ends_at=1130.1)
    assert found is not None
    assert found.seconds == pytest.approx(120)
    assert found.starved == 0
    assert found.running == 250
    assert found.full == 1.0
    assert found.tokens_per_s == pytest.approx(40 * (300 + 2 * 100), rel=0.01)
    assert found.step_s == pytest.approx(0.05, rel=0.02)
    assert found.busiest_core == pytest.approx(0.6)
    assert found.card_use == pytest.approx(0.95)
    assert found.cards[0].clock == pytest.approx(1750 / 1980)
    assert (found.idle_s, found.tail_s) == (0, 0)


def test_shares_are_of_the_work() -> None:
    found = worker_evidence("w", infer_readings(starved=0.3, media=0.2, commit_wait=0.1))
    assert found is not None
    assert found.starved == pytest.approx(0.3)
    assert found.media == pytest.approx(0.2)
    assert found.commit_wait == pytest.approx(0.1)
    assert found.waited == pytest.approx(0.6)


def test_what_others_do_after_its_last_row_is_idle_time() -> None:
    readings = infer_readings()
    end = find_last_row(readings)
    last = replace(readings[-1], at=end + 60)  # it lives on, and has nothing to do
    found = worker_evidence("w", [*readings, last], tail_ends_at=end + 50)
    assert found is not None
    assert found.seconds == pytest.approx(120)
    assert found.idle_s == pytest.approx(50)


def test_a_tail_is_set_apart_from_the_rest() -> None:
    readings = infer_readings(tail_s=40, tail_running=25)
    found = worker_evidence("w", readings, tail_ends_at=find_last_row(readings))
    assert found is not None
    assert found.seconds == pytest.approx(160)
    assert found.tail_s == pytest.approx(40 * 0.9, abs=0.5)
    assert found.full == 1.0
    assert found.running == 250
    stopped = worker_evidence("w", readings)
    assert stopped == replace(found, tail_s=0.0), "set apart, and no loss where it was stopped"


def test_an_engine_that_is_starved_at_the_end_has_no_tail() -> None:
    readings = infer_readings()
    feed, engine = readings[-1].feed, readings[-1].engine
    assert feed is not None
    assert engine is not None
    hungry = [
        replace(
            readings[-1], at=readings[-1].at + after, rows=readings[-1].rows + int(after),
            engine=replace(engine, running=3), feed=replace(feed, starved_s=feed.starved_s + after),
        )
        for after in (2.0, 4.0, 6.0)
    ]  # fmt: skip
    found = worker_evidence("w", [*readings, *hungry], tail_ends_at=readings[-1].at)
    assert found is not None
    assert found.tail_s == 0
    assert found.starved > 0.04


def test_counters_of_a_restarted_engine_begin_again() -> None:
    readings = infer_readings(seconds=40, preemptions_per_s=1)
    again = [
        replace(one, at=one.at + 42, rows=one.rows + readings[-1].rows) for one in readings[3:]
    ]
    found = worker_evidence("w", [*readings, *again])
    assert found is not None
    assert found.preemptions == pytest.approx(80, abs=3)


def test_readings_without_gauges_do_no_harm() -> None:
    bare = [Reading(at=1000.0 + 2 * n, worker="w", rows=10 * n) for n in range(30)]
    found = worker_evidence("w", bare)
    assert found is not None
    assert found.seconds == pytest.approx(56)
    assert (found.full, found.kv_use, found.starved, found.card_use) == (0, 0, 0, None)
    assert (found.step_s, found.busiest_core) == (None, None)


def test_quarters_follow_the_rate() -> None:
    found = worker_evidence("w", infer_readings(seconds=800, slowing=0.5))
    assert found is not None
    first, second, third, fourth = found.quarters
    assert first > second > third > fourth
    assert fourth / first == pytest.approx(0.6, abs=0.05)


def test_reasons_of_a_held_clock_are_shares() -> None:
    hot = replace(CARD, throttled=("heat",), temperature_c=91)
    readings = infer_readings()
    half = [replace(one, cards=(hot,)) if n % 2 else one for n, one in enumerate(readings)]
    found = worker_evidence("w", half)
    assert found is not None
    assert found.cards[0].throttled["heat"] == pytest.approx(0.5, abs=0.02)
    assert found.cards[0].temperature_c == 91


def test_links_and_others_on_a_card() -> None:
    card = CardReading(3, pcie_received_bytes_s=10, pcie_sent_bytes_s=30, others_bytes=7)
    found = worker_evidence("w", infer_readings(cards=(card,)))
    assert found is not None
    (one,) = found.cards
    assert (one.index, one.link_bytes_s, one.others_bytes) == (3, 30, 7)
    assert one.nvlink_bytes_s is None
    assert one.use is None


@pytest.mark.parametrize(
    ("per_row_s", "fixed_s", "share"),
    [(0.0, 0.05, 1.0), (0.001, 0.0, 0.0), (0.001, 0.1, 0.5)],
)
def test_what_a_step_costs_whatever_the_batch(
    per_row_s: float, fixed_s: float, share: float
) -> None:
    steps = [(rows, fixed_s + per_row_s * rows) for rows in range(10, 101, 10)]
    assert fixed_share([(float(a), b) for a, b in steps], 100) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("rows", [[100] * 20, [60, 100] * 4, [10, 100]])
def test_steps_that_are_alike_or_few_say_nothing_of_it(rows: list[int]) -> None:
    assert fixed_share([(float(one), 0.05) for one in rows], 100) is None


def test_preparers_are_added_up() -> None:
    found = prepare_evidence([prepare_readings(read_s=3, idle_s=6), prepare_readings(read_s=1), []])
    assert found is not None
    assert (found.processes, found.rows, found.read_s) == (2, 100_000, 4)
    assert found.idle == pytest.approx(6 / (4 + 2 + 0.2 + 6))
    assert prepare_evidence([infer_readings()]) is None


def test_a_host_is_seen_at_its_fullest() -> None:
    readings = [
        Reading(at=float(n), worker="w", host="a", node=HostReading(8, shm_bytes=used))
        for n, used in enumerate((5, 9, 7))
    ]
    (found,) = host_evidence([*readings, Reading(at=9.0, worker="w", host="b")])
    assert (found.name, found.shm_bytes) == ("a", 9)


def test_rows_that_wait_in_the_engine_are_work_too() -> None:
    readings = infer_readings()
    waiting = replace(readings[1], at=readings[1].at + 0.05, engine=EngineGauges(waiting=4))
    assert working_time([*readings[:2], waiting, *readings[2:]])[0] == waiting


def test_rows_that_end_together_do_not_look_like_few() -> None:
    """Half of the readings fall on the moment between one wave of equal rows and the next."""
    readings = [
        replace(one, engine=replace(one.engine, running=3)) if number % 2 and one.engine else one
        for number, one in enumerate(infer_readings(rows_per_s=50))
    ]
    found = worker_evidence("w", readings)
    assert found is not None
    assert found.running == pytest.approx(250, rel=0.02)
    assert found.full > 0.95
