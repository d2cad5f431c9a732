"""What comes of a request: an answer with all that belongs to it, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Logprob(NamedTuple):
    """How probable a token was.

    `logprob` is None for minus infinity, `rank` counts from 1. An engine that tells the token's
    text and not its id sets `token`, and `token_id` is None.
    """

    token_id: int | None
    logprob: float | None
    rank: int | None = None
    token: str | None = None


class TokenLogprobs(NamedTuple):
    """The token that was chosen at one place of an answer, and the likeliest ones there."""

    chosen: Logprob
    top: tuple[Logprob, ...] = ()


class Sample(NamedTuple):
    """A further answer to the same request (`n` above 1); fields as those of an Outcome."""

    token_ids: Sequence[int]
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: str | None = None
    more: More | None = None


class More(NamedTuple):
    """What only some requests bring back; None or empty where it was not asked for.

    Attributes:
        samples: the answers after the first.
        logprobs: of the tokens of the answer, in order.
        reasoning: what the model thought before it answered.
        tool_calls: OpenAI's form: {id, type, function: {name, arguments}}, arguments as JSON text.
        parsed: the answer as JSON text, checked against the row's schema.
        prompt_tokens: as counted by an engine that has its own tokenizer.
        completion_tokens: likewise, of all samples together.
        label: of a classification.
        score: of the label, the pair or the whole input.
        scores: of a classification one per label, of a rerank one per document (None for one that
            could not be read), of a process reward one per step.
    """

    samples: tuple[Sample, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    reasoning: str | None = None
    tool_calls: tuple[dict[str, Any], ...] | None = None
    parsed: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    label: str | None = None
    score: float | None = None
    scores: tuple[float | None, ...] | None = None


class Outcome(NamedTuple):
    """What came of a request.

    `text` is set only when the engine had to detokenise (stop strings); otherwise the worker
    decodes `token_ids` in batches. A failed outcome has `error_code` and `error`. `embedding` is
    the vector of an embedding task: its numbers in little-endian order, nothing around them.
    `more` holds what only some requests ask for. `generating_s` is from the row's first token to
    its last, by the engine's clock; None from engines that do not tell, or where there is no token.
    """

    row: int
    token_ids: Sequence[int]
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: str | None = None
    cached_tokens: int = 0
    error_code: str | None = None
    error: str | None = None
    attempts: int = 1
    embedding: bytes | None = None
    more: More | None = None
    generating_s: float | None = None

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens of all samples."""
        if self.more is None:
            return len(self.token_ids)
        if self.more.completion_tokens is not None:
            return self.more.completion_tokens
        return len(self.token_ids) + sum(len(one.token_ids) for one in self.more.samples)
