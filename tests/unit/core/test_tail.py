"""The tail is the time at the end in which an engine stood half empty for want of rows, and no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchwright.core.ports import EngineGauges
from batchwright.core.readings import FeedReading, Reading
from batchwright.core.tail import find_ends, find_last_row, find_tail, usual_rows


def made(*batches: tuple[int, int], cap: int = 0) -> list[Reading]:
    """A reading each second: (rows that run, for so many seconds), one row coming out in each."""
    running = [rows for rows, seconds in batches for _ in range(seconds)]
    return [
        Reading(
            float(at), "w", rows=at,
            engine=EngineGauges(running=rows), feed=FeedReading(rows, cap, 256),
        )
        for at, rows in enumerate(running)
    ]  # fmt: skip


def test_an_engine_that_is_full_to_the_end_has_none() -> None:
    tail = find_tail(made((100, 60)), 59.0)
    assert (tail.begins_at, tail.lost_s) == (59.0, 0.0)


def test_it_begins_when_half_of_the_rows_are_left_and_counts_what_is_empty() -> None:
    tail = find_tail(made((100, 61), (60, 10), (25, 10)), 80.0)
    assert tail.begins_at == 70.0, "60 of 100 rows are no half empty engine"
    assert (tail.draining_s, tail.idle_s) == (pytest.approx(7.5), 0.0)


def test_what_others_do_after_its_last_row_is_idle_time() -> None:
    readings = made((100, 61))
    after = [replace(readings[-1], at=61.0 + n, engine=EngineGauges()) for n in range(30)]
    tail = find_tail([*readings, *after], 85.0)
    assert (tail.begins_at, tail.draining_s, tail.idle_s) == (60.0, 0.0, 25.0)
    assert tail.lost_s == 25.0


def test_a_tail_that_takes_most_of_the_time_is_found() -> None:
    tail = find_tail(made((200, 21), (2, 100)), 120.0)
    assert tail.begins_at == 20.0
    assert tail.draining_s == pytest.approx(99.0)


def test_a_dip_in_the_middle_is_no_tail() -> None:
    assert find_tail(made((100, 30), (5, 20), (100, 30)), 79.0).lost_s == 0.0


def test_a_cache_without_room_for_more_rows_is_no_tail() -> None:
    long_rows = made((200, 30), (40, 30), cap=256)
    assert find_tail(long_rows, 59.0).lost_s > 20.0
    fewer = [
        replace(one, feed=FeedReading(one.feed.in_flight, 42, 256))
        if one.feed and one.at >= 30
        else one
        for one in long_rows
    ]
    assert find_tail(fewer, 59.0).lost_s == 0.0


def test_waiting_for_rows_that_are_being_prepared_is_no_tail() -> None:
    hungry = [
        replace(one, feed=FeedReading(5, 256, 256, starved_s=max(0.0, one.at - 30)))
        for one in made((200, 31), (5, 20))
    ]
    assert find_tail(hungry, 50.0).lost_s == 0.0


@pytest.mark.parametrize("readings", [[], made((0, 1)), [Reading(1.0, "w"), Reading(2.0, "w")]])
def test_an_engine_of_which_nothing_came_has_none(readings: list[Reading]) -> None:
    assert find_tail(readings, 50.0).lost_s == 0.0
    assert find_last_row(readings) == 0.0


def test_readings_without_an_engine_say_nothing_of_how_full_it_was() -> None:
    bare = [Reading(float(n), "w", rows=n) for n in range(30)]
    assert usual_rows(bare) == 0.0
    assert find_tail(bare, 29.0).lost_s == 0.0


LAST = {"early": 50.0, "a": 110.0, "b": 150.0, "died": 160.0}


def test_all_engines_of_a_start_have_the_same_end_of_the_run() -> None:
    found = find_ends(LAST, complete=True, begun_at=100.0, stopped=["died"])
    assert found == {"a": 160.0, "b": 160.0}


def test_a_run_that_is_not_complete_has_no_tail() -> None:
    assert find_ends(LAST, complete=False, begun_at=100.0, stopped=[]) == {}
