from __future__ import annotations

from batchwright.executors.patience import Patience


def test_a_run_does_not_wait_for_ever_for_its_first_engines() -> None:
    patience = Patience(2, timeout_s=10)
    assert patience.look(5, [True, False, False], []) is None
    assert patience.look(15, [True, False, False], []) is None
    found = patience.look(16, [True, False, False], [])
    assert found == "after 11 s only 1 of 2 engines have a place"


def test_later_one_engine_is_enough_and_none_is_not() -> None:
    patience = Patience(2, timeout_s=10)
    assert patience.look(0, [True, True], []) is None
    assert patience.look(100, [True, False], []) is None
    assert patience.look(200, [False, False], []) is None
    assert patience.look(211, [False, False], []) == "after 11 s only 0 of 1 engines have a place"


def test_a_node_that_comes_starts_the_count_anew() -> None:
    patience = Patience(1, timeout_s=10)
    for second in range(0, 100, 20):
        assert patience.look(second, [False], []) is None
        assert patience.look(second + 9, [True], []) is None


def test_engines_do_not_wait_for_ever_for_rows_that_nobody_can_prepare() -> None:
    patience = Patience(1, timeout_s=10)
    assert patience.look(0, [True], [False, True]) is None
    assert patience.look(50, [True], [False]) is None
    assert patience.look(61, [True], [False]) == "after 11 s no preparing process has a place"


def test_a_run_may_begin_with_none_at_all() -> None:
    patience = Patience(0, timeout_s=10)
    assert patience.look(0, [False], []) is None
    assert patience.look(11, [False], []) == "after 11 s only 0 of 1 engines have a place"


def test_where_all_engines_are_done_nobody_waits() -> None:
    patience = Patience(1, timeout_s=10)
    assert patience.look(0, [], []) is None
    assert patience.look(100, [], []) is None
