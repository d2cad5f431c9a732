"""A model's numbers to labels and scores."""

from __future__ import annotations

import numpy as np
import pytest

from batchwright.core.errors import JobError
from batchwright.core.outcomes import More, Outcome
from batchwright.core.pieces import Pieces
from batchwright.core.records import Request
from batchwright.core.tasks import TaskSettings
from batchwright.core.vectors import EmbeddingSettings
from batchwright.engines.pooled import made_up_scores, score_outcome

CLASSIFY = TaskSettings("classify", labels=("a", "b", "c"))
COSINE = TaskSettings("score", EmbeddingSettings("mean", 2), "vectors")


def numbers(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def more_of(task: TaskSettings, pieces: Pieces, *outputs: np.ndarray | None) -> More:
    outcome = score_outcome(3, task, pieces, outputs)
    assert (outcome.row, outcome.error_code) == (3, None)
    assert outcome.more is not None
    return outcome.more


def test_the_best_label_has_its_score_and_the_numbers_are_short() -> None:
    more = more_of(CLASSIFY, Pieces((5,)), numbers(0.1, 0.7, 0.2))
    assert (more.label, more.score, more.scores) == ("b", 0.7, (0.1, 0.7, 0.2))


def test_another_number_of_outputs_than_labels_ends_the_job() -> None:
    with pytest.raises(JobError, match="makes 2 outputs, and there are 3 labels"):
        score_outcome(0, CLASSIFY, Pieces((5,)), [numbers(1, 2)])
    with pytest.raises(JobError, match="makes 2 outputs for a text"):
        score_outcome(0, TaskSettings("score"), Pieces((5,)), [numbers(1, 2)])


def test_one_document_has_a_score_and_a_list_has_a_list() -> None:
    task = TaskSettings("score")
    assert more_of(task, Pieces((5,)), numbers(0.25)) == More(score=0.25)
    listed = Pieces((5, 0, 4), (), listed=True)
    assert more_of(task, listed, numbers(0.25), None, numbers(0.5)).scores == (0.25, None, 0.5)


def test_vectors_are_cut_and_compared_whatever_their_length_is() -> None:
    query, along, across = numbers(2, 0, 9), numbers(7, 0, -3), numbers(0, 5, 1)
    listed = Pieces((2, 2, 0, 2), (), listed=True)
    assert more_of(COSINE, listed, query, along, None, across).scores == (1.0, None, 0.0)
    with pytest.raises(JobError, match="dimensions is 2, but the model makes 1"):
        score_outcome(0, COSINE, Pieces((1, 1)), [numbers(1), numbers(2)])


def test_rewards_of_tokens_and_steps() -> None:
    tokens = TaskSettings("reward", method="tokens")
    assert more_of(tokens, Pieces((3,)), np.float32([[1], [2], [0.5]])).score == 0.5
    steps = TaskSettings("reward", method="steps", step_token_id=7)
    assert more_of(steps, Pieces((3,)), np.float32([[0.75, 0.25], [0.5, 0.5]])).scores == (
        0.25,
        0.5,
    )
    none = score_outcome(0, steps, Pieces((3,)), [np.zeros((0, 2), np.float32)])
    assert none.error_code == "bad_score"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_not_finite_fails_its_row(value: float) -> None:
    outcome = score_outcome(0, CLASSIFY, Pieces((5,)), [numbers(0, value, 0)])
    assert (outcome.error_code, outcome.more) == ("bad_score", None)


@pytest.mark.parametrize(
    "task",
    [
        CLASSIFY, COSINE, TaskSettings("score"), TaskSettings("reward", raw_scores=True),
        TaskSettings("reward", method="tokens"),
        TaskSettings("reward", method="steps", step_token_id=2),
    ],
)  # fmt: skip
def test_made_up_scores_depend_on_the_prompt_alone(task: TaskSettings) -> None:
    extras = Pieces((2, 3)).dump() if task is COSINE else ""
    first, again, other = (
        made_up_scores([Request(row, ids, 0, "", extras)], task)[0]
        for row, ids in ((0, [1, 2, 3, 4, 2]), (9, [1, 2, 3, 4, 2]), (9, [2, 1, 4, 3, 2]))
    )
    assert first.more == again.more != other.more
    assert isinstance(first, Outcome)
    assert first.error_code is None
