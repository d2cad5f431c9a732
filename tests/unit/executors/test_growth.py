from __future__ import annotations

from collections.abc import Callable

from batchwright.executors.growth import Growth


def simulate(
    rate_of: Callable[[int], float], most: int, *, left_s: float | None = 3600, seconds: int = 400
) -> list[tuple[int, str]]:
    """The steps taken, with the second of each; a new engine is up after 40 s."""
    growth = Growth(most)
    engines, up, work, came_at = 1, 1, 0.0, 0
    found: list[tuple[int, str]] = []
    for now in range(seconds):
        if up < engines and now >= came_at:
            up = engines
        work += rate_of(up)
        step = growth.look(float(now), up, work, left_s)
        if step == "add":
            engines, came_at = engines + 1, now + 40
        elif step == "drop":
            engines = up = engines - 1
        if step:
            found.append((now, step))
    return found


def test_engines_are_added_while_each_makes_the_card_do_more() -> None:
    steps = [step for _, step in simulate(lambda engines: 100.0 * engines, 3)]
    assert steps == ["add", "add"]


def test_an_engine_that_brings_nothing_is_dropped_for_good() -> None:
    steps = [step for _, step in simulate(lambda engines: 100.0 + 2 * engines, 4)]
    assert steps == ["add", "drop"]


def test_the_third_may_be_one_too_many() -> None:
    rates = {1: 100.0, 2: 160.0, 3: 163.0}
    steps = [step for _, step in simulate(lambda engines: rates[engines], 4)]
    assert steps == ["add", "add", "drop"]


def test_each_rate_is_measured_for_a_while_with_all_engines_up() -> None:
    first, second = (at for at, _ in simulate(lambda engines: 100.0 * engines, 3))
    assert first >= 20
    assert second >= first + 40 + 20


def test_nothing_is_added_near_the_end_or_where_one_is_all() -> None:
    assert simulate(lambda engines: 100.0 * engines, 3, left_s=100) == []
    assert simulate(lambda engines: 100.0 * engines, 3, left_s=None) == []
    assert simulate(lambda engines: 100.0 * engines, 1) == []


def test_an_engine_that_cannot_start_ends_the_trial() -> None:
    growth = Growth(3)
    now, step = 0, None
    while step is None:
        now += 1
        step = growth.look(float(now), 1, 100.0 * now, 3600)
    assert (step, growth.on_trial) == ("add", True)
    growth.give_up()
    assert not growth.on_trial
    assert [growth.look(float(now + n), 1, 100.0 * (now + n), 3600) for n in range(200)] == [
        None
    ] * 200
