"""The limit of requests in flight finds what an endpoint takes, against simulated endpoints."""

from __future__ import annotations

from batchwright.engines.http_window import Window


def rounds(
    window: Window,
    count: int,
    *,
    places: float = float("inf"),
    refuses_above: float = float("inf"),
    slower_above: float = float("inf"),
) -> list[int]:
    """Let an endpoint with so many places answer, a second per full round; the limit after each.

    Above `refuses_above` requests at once it refuses the rest; above `slower_above` it does less
    work the more it has.
    """  # fmt: skip
    limits = []
    now = getattr(window, "test_now", 0.0)
    for _ in range(count):
        sent, sent_at = window.limit, now
        seconds = 1.0 * max(1.0, sent / places)
        if sent > slower_above:
            seconds *= (sent / slower_above) ** 2
        taken = int(min(sent, refuses_above))
        for number in range(taken):
            window.answered(sent_at + seconds * (number + 1) / taken, 100, full=True)
        if sent > taken:
            window.overloaded(sent_at, sent_at)
        now += seconds
        limits.append(window.limit)
    return limits


def test_it_doubles_until_the_most_where_nothing_stops_it() -> None:
    limits = rounds(Window(256), 12)
    assert limits[0] == 16
    assert limits[-1] == 256
    assert max(limits) == 256


def test_it_settles_below_what_is_refused() -> None:
    window = Window(1000)
    limits = rounds(window, 200, refuses_above=60)
    assert all(30 <= limit <= 100 for limit in limits[20:])
    assert window.cuts >= 3


def test_one_burst_of_refusals_cuts_once() -> None:
    window = Window(100, start=100)
    for _ in range(50):
        window.overloaded(10.0, sent_at=9.0)
    assert window.limit == 70
    window.overloaded(11.0, sent_at=10.5)
    assert window.limit == 49


def test_it_stops_growing_where_more_brings_nothing() -> None:
    limits = rounds(Window(1024), 60, places=32)
    assert 32 <= limits[-1] <= 128
    assert len(set(limits[-20:])) < 20, "it looks again less and less often"


def test_it_goes_back_where_more_is_slower() -> None:
    limits = rounds(Window(1024), 30, slower_above=40)
    assert 8 <= limits[-1] <= 80


def test_a_limit_that_is_not_met_does_not_grow() -> None:
    window = Window(256)
    for number in range(500):
        window.answered(float(number), 10, full=False)
    assert window.limit == 8


def test_a_queue_at_the_server_stops_growth_and_a_long_one_shrinks() -> None:
    window = Window(256, start=64)
    window.server_says(running=32, waiting=20)
    for number in range(64):
        window.answered(number / 100, 10, full=True)
    assert window.limit == 64
    window.server_says(running=32, waiting=60)
    assert window.limit == 57
    window.server_says(running=57, waiting=0)
    for number in range(64):
        window.answered(5 + number / 100, 10, full=True)
    assert window.limit > 57


def test_after_an_outage_it_begins_with_few_and_never_reaches_zero() -> None:
    window = Window(256, start=256)
    window.restart()
    assert window.limit == 128
    for number in range(60):
        window.overloaded(10.0 * number, sent_at=10.0 * number)
    assert window.limit == 1
