"""Labels and scores on disk."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from batchwright.core.errors import VerifyError
from batchwright.core.outcomes import More, Outcome
from batchwright.core.schemas import SCORES
from batchwright.core.tasks import TaskSettings

_NOTHING = More()


def score_columns(outcomes: Sequence[Outcome], task: TaskSettings) -> dict[str, pa.Array]:
    """What a task that makes scores has in the place of a text; all null where a row failed.

    Raises:
        VerifyError: a row that is ok has no score at all.
    """
    further = [one.more or _NOTHING for one in outcomes]
    for one, more in zip(outcomes, further, strict=True):
        if one.error_code is None and more.score is None and more.scores is None:
            raise VerifyError(f"row {one.row} needs a score, and came with none")
    label, score, scores = SCORES
    columns = {
        "score": pa.array([more.score for more in further], score.type),
        "scores": pa.array([more.scores for more in further], scores.type),
    }
    if task.name == "classify":
        columns["label"] = pa.array([more.label for more in further], label.type)
    return columns
