from __future__ import annotations

import math
from typing import Any

from batchwright.executors.stall import Limits, StallWatch

LIMITS = Limits(silent_s=100, stuck_s=1000)


def state(beat: int, rows: int = 0, **more: Any) -> dict[str, Any]:
    return {"beat": beat, "phase": "running", "rows": rows, "oldest": [[7, 1.0]], **more}


def test_a_worker_that_goes_silent_is_named() -> None:
    watch = StallWatch(LIMITS)
    assert watch.look(0, {"w": state(1)}) == {}
    assert watch.look(100, {"w": state(1)}) == {}
    assert watch.look(101, {"w": state(1)}) == {"w": "no sign of life for 101 s"}


def test_a_worker_that_lives_and_gets_nowhere_is_named() -> None:
    watch = StallWatch(LIMITS)
    for second in range(0, 1001, 50):
        assert watch.look(second, {"w": state(second, rows=3)}) == {}
    found = watch.look(1001, {"w": state(1001, rows=3)})
    assert found == {"w": "nothing has come of its rows for 1001 s"}


def test_each_row_that_comes_out_starts_the_count_anew() -> None:
    watch = StallWatch(LIMITS)
    for second in range(0, 5000, 50):
        assert watch.look(second, {"w": state(second, rows=second // 900)}) == {}


def test_a_worker_with_nothing_to_do_may_wait() -> None:
    watch = StallWatch(LIMITS)
    for second in range(0, 5000, 50):
        assert watch.look(second, {"w": state(second, oldest=[])}) == {}


def test_those_that_ended_or_have_not_begun_are_left_alone() -> None:
    watch = StallWatch(LIMITS)
    for second in (0, 5000):
        assert watch.look(second, {"a": {}, "b": state(1, ended=True)}) == {}


def test_rows_of_an_endpoint_may_wait_for_ever() -> None:
    watch = StallWatch(Limits(100, math.inf))
    for second in range(0, 100_000, 50):
        assert watch.look(second, {"w": state(second)}) == {}
