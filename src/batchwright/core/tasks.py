"""What a job asks of its model, as far as engines and results must know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from batchwright.core.vectors import EmbeddingSettings

TaskName = Literal["generate", "embed", "classify", "score", "reward"]

# How a model comes to its scores: by a classification head over the whole input, by the cosine of
# two vectors, by a value per token of which the last counts, or by a value per marked step.
ScoreMethod = Literal["head", "vectors", "tokens", "steps"]


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """What becomes of each row.

    Attributes:
        name: the task.
        embedding: the vectors of `embed`, and those that a score compares.
        method: how a model comes to its scores; of no meaning where text or vectors are made.
        labels: of `classify`, in the order of the model's outputs.
        raw_scores: whether scores are the model's bare outputs, not probabilities.
        step_token_id: the token that marks the end of a step; None where there are no steps.
    """

    name: TaskName = "generate"
    embedding: EmbeddingSettings | None = None
    method: ScoreMethod = "head"
    labels: tuple[str, ...] = ()
    raw_scores: bool = False
    step_token_id: int | None = None

    @property
    def makes_text(self) -> bool:
        """Whether tokens are generated."""
        return self.name == "generate"

    @property
    def makes_scores(self) -> bool:
        """Whether a row gets numbers, and no text or vector."""
        return self.name not in ("generate", "embed")

    @property
    def vectors(self) -> EmbeddingSettings | None:
        """The vectors that the results hold; None where they hold none."""
        return self.embedding if self.name == "embed" else None


GENERATE = TaskSettings()
