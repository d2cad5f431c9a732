from __future__ import annotations

import pytest
from benchmarks.scheduler import Row
from benchmarks.what_if import longest_first, share_out


def rows(count: int) -> list[Row]:
    return [Row(n, 50, 1 + n % 300, 1 + n % 300) for n in range(count)]


def test_the_longest_come_first_and_none_is_lost() -> None:
    ordered = longest_first(rows(600))
    assert sorted(row.number for row in ordered) == list(range(600))
    assert min(row.max_tokens for row in ordered[:20]) > 250
    assert max(row.max_tokens for row in ordered[-20:]) < 12


@pytest.mark.parametrize("cards", [1, 2])
def test_every_engine_ends_when_its_rows_do(cards: int) -> None:
    given = rows(400)
    seconds = share_out(given, cards)
    assert len(seconds) == cards
    assert all(row.made == row.output for row in given)
    assert min(seconds) > 0
