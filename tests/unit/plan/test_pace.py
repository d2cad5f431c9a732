from __future__ import annotations

from batchwright.plan.pace import arranging_s, missing, rows_meanwhile


def test_a_few_chunks_are_kept_ahead_of_each_engine() -> None:
    assert missing([], 1, 0.0, 20.0) == (3, 0)
    assert missing([256], 4, 0.0, 20.0) == (8, 0)
    assert missing([256] * 3, 1, 0.0, 20.0) == (0, 0)


def test_a_fast_engine_gets_more() -> None:
    assert missing([256] * 3, 1, 100.0, 20.0) == (0, 2000 - 768)
    assert missing([8192] * 3, 1, 100.0, 20.0) == (0, 0)


def test_an_engine_of_unknown_speed_is_taken_for_a_fast_one() -> None:
    seconds = arranging_s(1_000_000, 200_000_000)
    assert rows_meanwhile(seconds, 2, 0.0) > rows_meanwhile(seconds, 2, 50.0) > 0
    assert rows_meanwhile(seconds, 2, 0.0) < 100_000
