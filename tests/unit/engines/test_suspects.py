"""The search for killer rows ends, and finds exactly the killers."""

from __future__ import annotations

from math import log2

from hypothesis import given
from hypothesis import strategies as st

from batchwright.engines.suspects import Suspects


def play(rows: list[int], killers: set[int], survivors_first: bool) -> tuple[set[int], list[int]]:
    """An engine in which each killer kills; returns (guilty, finished) after counting deaths."""
    suspects = Suspects()
    guilty: set[int] = set()
    finished: list[int] = []
    deaths = 0
    running = list(rows)
    while running:
        dying = killers & set(running)
        if dying:
            if survivors_first:  # the others finish before the engine dies
                for row in [row for row in running if row not in dying]:
                    suspects.finished(row)
                    finished.append(row)
                    running.remove(row)
            deaths += 1
            guilty |= set(suspects.died(running))
        else:
            for row in running:
                suspects.finished(row)
                finished.append(row)
        running = suspects.group()
    assert not suspects.active
    bound = 2 + len(killers) * (3 + 2 * log2(max(2, len(rows))))
    assert deaths <= (bound if killers else 0)
    return guilty, finished


@given(st.integers(1, 200), st.sets(st.integers(0, 199), max_size=12), st.booleans())
def test_killers_are_found_and_everybody_else_finishes_once(
    count: int, chosen: set[int], survivors_first: bool
) -> None:
    rows = list(range(count))
    killers = chosen & set(rows)
    guilty, finished = play(rows, killers, survivors_first)
    assert guilty == killers
    assert sorted(finished) == [row for row in rows if row not in killers]


def test_one_killer_in_a_thousand_costs_about_log2_deaths() -> None:
    suspects = Suspects()
    running, deaths, guilty = list(range(1024)), 0, []
    while running:
        if 777 in running:
            deaths += 1
            guilty += suspects.died(running)
        else:
            for row in running:
                suspects.finished(row)
        running = suspects.group()
    assert guilty == [777]
    assert deaths == 1 + 11 + 1  # all together, ten halvings and its first alone, and once more


def test_a_death_that_no_row_caused_accuses_nobody_for_long() -> None:
    suspects = Suspects()
    assert suspects.died([1, 2, 3]) == []
    assert suspects.group() == [1, 2, 3]
    for row in (1, 2, 3):
        suspects.finished(row)
    assert not suspects.active


def test_an_idle_death_during_the_search_forgets_no_group() -> None:
    suspects = Suspects()
    suspects.died([1, 2])
    assert suspects.died([]) == []
    assert suspects.group() == [1, 2]


def test_one_death_alone_is_no_proof() -> None:
    suspects = Suspects()
    assert suspects.died([5]) == []
    suspects.finished(5)
    assert suspects.died([5]) == []  # counted from one again
    assert suspects.died([5]) == [5]
