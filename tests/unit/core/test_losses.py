"""Where an engine's time went adds up to its time, and each loss is found where it was."""

from __future__ import annotations

import pytest

from batchwright.core import losses
from batchwright.core.losses import EngineTime, balance, engine_losses
from batchwright.core.ports import EngineGauges
from batchwright.core.readings import FeedReading, Reading


def reading(at: float, running: int, *, starved_s: float = 0.0, preemptions: int = 0) -> Reading:
    return Reading(
        at,
        "w",
        rows=int(at),
        prompt_tokens=900,
        completion_tokens=100,
        engine=EngineGauges(running=running, preemptions=preemptions),
        feed=FeedReading(starved_s=starved_s, media_s=0.0, commit_wait_s=starved_s / 2),
    )


def test_start_up_waits_and_tail_are_told_apart() -> None:
    time = EngineTime(began_at=0.0, up_at=20.0, ended_at=110.0)
    busy = [reading(20.0 + n, 100, starved_s=n / 10) for n in range(71)]
    drained = [reading(90.0 + n, 100 - 10 * n, starved_s=9.0) for n in range(1, 11)]
    found = engine_losses(time, [*busy, *drained], mean_tokens=10.0, tail_ends_at=100.0)
    assert found[losses.START_UP] == 20.0
    assert found[losses.STARVED] == pytest.approx(9.0)
    assert found[losses.COMMITS] == pytest.approx(4.5)
    # Half full until 95, then 40 %, 30 % … of the rows, and the last is done at 100.
    assert found[losses.TAIL] == pytest.approx(0.6 + 0.7 + 0.8 + 0.9 + 1.0)
    assert found[losses.ENDING] == 10.0
    assert found[losses.PREEMPTED] == 0.0


def test_an_engine_that_was_stopped_has_no_tail() -> None:
    readings = [reading(float(n), 100 if n < 50 else 1) for n in range(100)]
    found = engine_losses(EngineTime(0.0, 0.0, 110.0), readings, mean_tokens=10.0)
    assert losses.TAIL not in found
    assert losses.ENDING not in found


def test_preempted_rows_cost_what_they_had_computed() -> None:
    time = EngineTime(0.0, 0.0, 100.0)
    readings = [reading(float(n), 10, preemptions=n // 10) for n in range(101)]
    found = engine_losses(time, readings, mean_tokens=100.0)
    assert found[losses.PREEMPTED] == pytest.approx(50.0), "1,000 tokens again beside 1,000"


def test_an_engine_that_never_came_up_is_all_start_up() -> None:
    found = engine_losses(EngineTime(5.0, None, 65.0), [], mean_tokens=1.0)
    assert found[losses.START_UP] == 60.0
    assert sum(found.values()) == 60.0


def parts(found: losses.Balance) -> dict[str, float]:
    return {one.name: one.seconds for one in found.parts}


def test_the_parts_add_up_to_all_the_time() -> None:
    lost = [{losses.START_UP: 20.0, losses.TAIL: 5.0}, {losses.START_UP: 15.0}]
    without = balance(200.0, lost)
    assert parts(without) == {losses.WORK: 160.0, losses.START_UP: 35.0, losses.TAIL: 5.0}
    assert without.share_of_limit is None
    with_plan = balance(200.0, lost, limit_s=100.0, best_limit_s=90.0)
    assert parts(with_plan) == {
        losses.LIMIT: 90.0, losses.PREFIXES: 10.0, losses.BELOW: 60.0,
        losses.START_UP: 35.0, losses.TAIL: 5.0,
    }  # fmt: skip
    assert with_plan.share_of_limit == pytest.approx(0.45)


def test_a_limit_that_cannot_be_right_makes_no_negative_part() -> None:
    found = balance(100.0, [{losses.START_UP: 30.0}], limit_s=200.0, best_limit_s=150.0)
    assert sum(one.seconds for one in found.parts) == pytest.approx(100.0)
    assert min(one.seconds for one in found.parts) >= 0.0
    assert found.share_of_limit == pytest.approx(1.5)
