"""A model's pooled numbers to labels and scores: cosines, the best label, the last token's value."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from batchwright.core.errors import JobError
from batchwright.core.outcomes import More, Outcome
from batchwright.core.pieces import Pieces, cut, pieces_of
from batchwright.core.records import Request
from batchwright.core.tasks import TaskSettings
from batchwright.engines.vectors import finished, made_up_vectors

Numbers = npt.NDArray[Any]


def score_outcome(
    row: int, task: TaskSettings, pieces: Pieces, outputs: Sequence[Numbers | None]
) -> Outcome:
    """What the outputs of a row's pieces say of it.

    Args:
        row: its number.
        task: which says how they are read.
        pieces: of the row.
        outputs: of each piece, float32: [labels], [1], [dimensions], [tokens, 1] or
            [steps, outputs]; None for a document that is skipped.

    Raises:
        JobError: the model makes other outputs than its config says.
    """
    there = [one for one in outputs if one is not None]
    if not all(np.isfinite(one).all() for one in there):
        return _failed(row, "an output of the model is not a finite number")
    if task.name == "classify":
        return _classified(row, there[0], task.labels)
    if task.method == "steps":
        return _by_steps(row, there[0])
    if task.method == "vectors":
        scores = _cosines(outputs, task)
    elif task.method == "tokens":
        scores = [_short(there[0].reshape(-1)[-1])]
    else:
        scores = [None if one is None else _only(one) for one in outputs]
    if pieces.listed:
        return Outcome(row, [], more=More(scores=tuple(scores)))
    return Outcome(row, [], more=More(score=scores[0]))


def _classified(row: int, output: Numbers, labels: Sequence[str]) -> Outcome:
    if output.shape != (len(labels),):
        raise JobError(
            f"the model makes {output.size} outputs, and there are {len(labels)} labels",
            "Set scoring.labels: one for each, in their order.",
        )
    best = int(output.argmax())
    scores = tuple(_short(value) for value in output)
    return Outcome(row, [], more=More(label=labels[best], score=scores[best], scores=scores))


def _by_steps(row: int, output: Numbers) -> Outcome:
    if not len(output):
        return _failed(row, "the text holds no token that ends a step (scoring.step_token)")
    good = output.reshape(len(output), -1)[:, -1]
    return Outcome(row, [], more=More(scores=tuple(_short(value) for value in good)))


def _cosines(outputs: Sequence[Numbers | None], task: TaskSettings) -> list[float | None]:
    assert task.embedding is not None, "the vectors that are compared"
    there = [one for one in outputs if one is not None]
    (stacked,) = [np.stack(there)]
    check_width(stacked, task)
    made = finished(stacked, task.embedding).astype(np.float32)
    made /= np.maximum(np.linalg.norm(made, axis=1, keepdims=True), 1e-12)
    cosines = iter((made[1:] @ made[0]).tolist())
    return [None if one is None else _short(np.float32(next(cosines))) for one in outputs[1:]]


def check_width(vectors: Numbers, task: TaskSettings) -> None:
    """Refuse vectors [rows, numbers] that are shorter than the job's. Raises JobError."""
    assert task.embedding is not None, "the job makes vectors"
    if vectors.shape[1] < task.embedding.dimensions:
        raise JobError(
            f"embedding.dimensions is {task.embedding.dimensions}, but the model makes "
            f"{vectors.shape[1]}"
        )


def _only(output: Numbers) -> float:
    if output.size != 1:
        raise JobError(
            f"the model makes {output.size} outputs for a text, and this task needs one",
            "task: classify tells the probability of each.",
        )
    return _short(output.reshape(-1)[0])


def _short(value: Any) -> float:
    """A float32 as the double with its shortest spelling: 0.1 and not 0.10000000149."""
    return float(str(np.float32(value)))


def _failed(row: int, why: str) -> Outcome:
    return Outcome(row, [], error_code="bad_score", error=why)


def made_up_scores(requests: Sequence[Request], task: TaskSettings) -> list[Outcome]:
    """Labels and scores that depend on the prompts alone: what the fake engine answers."""
    return [_made_up(request, task) for request in requests]


def _made_up(request: Request, task: TaskSettings) -> Outcome:
    pieces = pieces_of(request)
    texts = cut(request.token_ids, pieces.lengths)
    outputs: list[Numbers | None] = [_output(text, task) if len(text) else None for text in texts]
    return score_outcome(request.row, task, pieces, outputs)


def _output(text: Sequence[int], task: TaskSettings) -> Numbers:
    if task.embedding is not None:
        return np.asarray(made_up_vectors([text], task.embedding)[0], np.float32)
    count = len(task.labels) or 1
    if task.method == "steps":
        count = sum(token_id == task.step_token_id for token_id in text)
    seed = zlib.crc32(array("i", text))
    logits = np.random.default_rng(seed).standard_normal(count).astype(np.float32)
    if task.raw_scores:
        return logits
    if task.name == "classify" and count > 1:
        powers = np.exp(logits)
        return np.asarray(powers / powers.sum(), np.float32)
    return np.asarray(1 / (1 + np.exp(-logits)), np.float32)
