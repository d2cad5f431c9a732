from __future__ import annotations

import numpy as np

from batchwright.plan.seen import SeenIds


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_the_row_that_was_first_is_named() -> None:
    seen = SeenIds()
    assert seen.add(["a", "b", "a"], rows(10, 11, 12)) == [(2, 10)]
    assert seen.add(["c", "b", "b", "a"], rows(20, 21, 22, 23)) == [(1, 11), (2, 11), (3, 10)]


def test_ids_are_told_apart_exactly() -> None:
    ids = ["a", "a ", "A", "", "7", "007", "é", "e\u0301", "\ud800", "a\x00"]
    assert SeenIds().add(ids, np.arange(len(ids), dtype=np.int64)) == []


def test_nothing_is_nothing() -> None:
    assert SeenIds().add([], rows()) == []


def test_memory_stays_at_24_bytes_a_row() -> None:
    seen = SeenIds()
    for start in range(0, 4096, 64):
        seen.add([str(i) for i in range(start, start + 64)], np.arange(start, start + 64))
    held = sum(run.keys.nbytes + run.rows.nbytes for run in seen._runs)
    assert held == 24 * 4096
    assert len(seen._runs) < 12
