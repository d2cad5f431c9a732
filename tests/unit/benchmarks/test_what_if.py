from __future__ import annotations

import pytest
from benchmarks import what_if
from benchmarks.scheduler import Row
from benchmarks.what_if import longest_first, share_out


def rows(count: int) -> list[Row]:
    return [Row(n, 50, 1 + n % 300, 1 + n % 300) for n in range(count)]


def test_the_longest_come_first_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "MOST", 20)
    ordered = longest_first(rows(600), cards=2)
    assert sorted(row.number for row in ordered) == list(range(600))
    assert min(row.max_tokens for row in ordered[:40]) > 200
    assert max(row.max_tokens for row in ordered[-20:]) < 12


@pytest.mark.parametrize("cards", [1, 2])
def test_every_engine_ends_when_its_rows_do(cards: int) -> None:
    given = rows(400)
    seconds = share_out(given, cards)
    assert len(seconds) == cards
    assert all(row.made == row.output for row in given)
    assert min(seconds) > 0


def test_a_job_that_does_not_fill_all_cards_is_shared_out() -> None:
    shared, greedy = ([Row(n, 1_000, 200, 400) for n in range(600)] for _ in range(2))
    assert max(share_out(shared, 2)) < 0.8 * max(share_out(greedy, 2, greedy=True))
