from __future__ import annotations

from array import array

import numpy as np
import pytest

from batchwright.core.records import Request
from batchwright.core.vectors import EmbeddingSettings
from batchwright.engines.length_batches import LengthBatches
from batchwright.engines.vectors import finished, made_up_vectors, vector_outcomes
from batchwright.engines.wire import pack_outcomes, unpack_outcomes


def rows_of(*lengths: int, first: int = 0) -> list[Request]:
    return [Request(first + at, array("i", range(n)), 0, "{}") for at, n in enumerate(lengths)]


def test_the_first_numbers_are_brought_to_length_1() -> None:
    raw = np.array([[3.0, 4.0, 12.0], [0.0, 0.0, 5.0]], np.float32)
    made = finished(raw, EmbeddingSettings("mean", 2))
    assert made.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0.0, 0.0]]
    assert finished(raw, EmbeddingSettings("mean", 2, normalize=False)).tolist() == [[3, 4], [0, 0]]


def test_a_vector_that_is_not_finite_fails_its_row_alone() -> None:
    raw = np.array([[1, 0], [np.nan, 1], [70_000, 1]], np.float32)
    as_half = finished(raw, EmbeddingSettings("cls", 2, normalize=False, dtype="float16"))
    outcomes = vector_outcomes([7, 8, 9], as_half)
    assert [one.error_code for one in outcomes] == [None, "bad_embedding", "bad_embedding"]
    assert [one.row for one in outcomes] == [7, 8, 9]
    assert outcomes[0].embedding == np.array([1, 0], np.float16).tobytes()
    assert outcomes[1].embedding is None


def test_made_up_vectors_depend_on_the_prompt_alone() -> None:
    embedding = EmbeddingSettings("mean", 32)
    first = made_up_vectors([[1, 2], [3]], embedding)
    again = made_up_vectors([array("i", [3]), [1, 2], [4]], embedding)
    assert np.array_equal(first, again[[1, 0]])
    assert np.linalg.norm(first, axis=1) == pytest.approx(1)
    assert not np.array_equal(again[0], again[2])


def test_vectors_cross_the_pipe_unchanged() -> None:
    outcomes = vector_outcomes([3, 4], np.array([[1, 2], [np.inf, 0]], np.float32))
    assert unpack_outcomes(pack_outcomes(outcomes)) == [
        outcome._replace(token_ids=array("i")) for outcome in outcomes
    ]


def test_a_batch_is_of_like_length_and_within_the_budget() -> None:
    batches = LengthBatches(max_tokens=64)
    batches.add(rows_of(*[30, 2, 29, 3, 28, 2, 4] * 3))
    seen = []
    while len(batches):
        batch = batches.take()
        lengths = [len(one.token_ids) for one in batch]
        assert len(batch) * max(lengths) <= 64
        assert max(lengths) - min(lengths) < 20
        seen += [one.row for one in batch]
    assert sorted(seen) == list(range(21))
    assert batches.take() == []


def test_a_row_longer_than_the_budget_goes_alone() -> None:
    batches = LengthBatches(max_tokens=10)
    batches.add(rows_of(50, 3))
    assert [[len(one.token_ids) for one in batches.take()] for _ in range(2)] == [[50], [3]]


def test_no_row_waits_for_ever_while_others_arrive() -> None:
    batches = LengthBatches(max_tokens=100)
    batches.add(rows_of(5, first=10_000))
    for turn in range(20):
        batches.add(rows_of(*[50] * 4, first=turn * 4))
        if any(one.row == 10_000 for one in batches.take()):
            return
    raise AssertionError("the short row was passed over 20 times")


def test_removed_rows_do_not_come_out() -> None:
    batches = LengthBatches(max_tokens=100)
    batches.add(rows_of(5, 6, 7))
    batches.take()
    batches.add(rows_of(5, 6, 7, first=3))
    batches.remove({3, 5})
    assert [one.row for one in batches.take()] == [4]
    assert len(batches) == 0
