"""Answers of OpenAI's API to outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
import orjson

from batchwright.core.errors import JobError
from batchwright.core.outcomes import Logprob, More, Outcome, Sample, TokenLogprobs
from batchwright.core.records import Request
from batchwright.core.vectors import EmbeddingSettings
from batchwright.engines.vectors import finished, vector_outcomes

# vLLM writes this, or less, for minus infinity, which JSON does not have.
_MINUS_INFINITY = -9999.0

_NO_ANSWER = (None, "abort", "error")


class BrokenAnswer(Exception):
    """The body is cut off, or is no answer to what was asked."""


def parse_body(raw: bytes) -> dict[str, Any]:
    """The JSON object of an answer. Raises BrokenAnswer."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BrokenAnswer(f"the answer is no JSON, or cut off: {error}") from None
    if not isinstance(body, dict):
        raise BrokenAnswer("the answer is no JSON object")
    return body


def generated(request: Request, body: Mapping[str, Any]) -> Outcome:
    """The outcome of a chat or text completion.

    Raises:
        BrokenAnswer: an answer is missing.
    """
    wanted: dict[str, Any] = orjson.loads(request.sampling or "{}")
    number = int(wanted.get("n") or 1)
    try:
        choices = sorted(body["choices"], key=lambda one: int(one.get("index") or 0))
        answers = [_sample(one, wanted.get("logprobs")) for one in choices[:number]]
        usage = _usage(body)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BrokenAnswer(f"the answer has not OpenAI's form: {error!r}") from None
    if len(answers) < number:
        raise BrokenAnswer(f"{len(answers)} answers came where {number} were asked for")
    first, *others = answers
    more = (first.more or More())._replace(
        samples=tuple(others), prompt_tokens=usage[0], completion_tokens=usage[1]
    )
    return Outcome(
        request.row,
        first.token_ids,
        text=first.text,
        finish_reason=first.finish_reason,
        stop_reason=first.stop_reason,
        cached_tokens=usage[2],
        more=more,
    )


def _usage(body: Mapping[str, Any]) -> tuple[int | None, int | None, int]:
    """Prompt, completion and cached tokens as the server counted them."""
    usage = body.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return (
        int(prompt) if prompt is not None else None,
        int(completion) if completion is not None else None,
        int(details.get("cached_tokens") or 0),
    )


def _sample(choice: Mapping[str, Any], num_top: int | None) -> Sample:
    reason = choice.get("finish_reason")
    if reason in _NO_ANSWER:
        raise BrokenAnswer(f"the server ended the request (finish_reason {reason})")
    stop_reason = choice.get("stop_reason")
    message = choice.get("message")
    reasoning = tool_calls = None
    text: str | None
    if message is None:
        text = str(choice["text"])
    else:
        text = message.get("content")
        if message.get("refusal"):
            text, reason = str(message["refusal"]), "refusal"
        reasoning = message.get("reasoning_content") or message.get("reasoning") or None
        tool_calls = _tool_calls(message.get("tool_calls"))
        if not text:
            text = None if tool_calls or reasoning else ""
    logprobs = None
    if num_top is not None:
        logprobs = _logprobs(choice.get("logprobs"), num_top)
    more = None
    if reasoning is not None or tool_calls is not None or logprobs is not None:
        more = More(reasoning=reasoning, tool_calls=tool_calls, logprobs=logprobs)
    return Sample((), text, str(reason), None if stop_reason is None else str(stop_reason), more)


def _tool_calls(calls: Sequence[Mapping[str, Any]] | None) -> tuple[dict[str, Any], ...] | None:
    if not calls:
        return None
    return tuple(
        {
            "id": one.get("id"),
            "type": one.get("type") or "function",
            "function": {
                "name": one["function"].get("name"),
                "arguments": one["function"].get("arguments") or "",
            },
        }
        for one in calls
    )


def _logprobs(found: Any, num_top: int) -> tuple[TokenLogprobs, ...] | None:
    if not found:
        return None
    if found.get("content") is not None:
        return tuple(_chat_place(one, num_top) for one in found["content"])
    tokens, values = found["tokens"], found["token_logprobs"]
    tops = found.get("top_logprobs") or [None] * len(tokens)
    return tuple(
        _place(token, value, list((top or {}).items()), num_top)
        for token, value, top in zip(tokens, values, tops, strict=True)
    )


def _chat_place(one: Mapping[str, Any], num_top: int) -> TokenLogprobs:
    top = [(entry["token"], entry["logprob"]) for entry in one.get("top_logprobs") or ()]
    return _place(one["token"], one["logprob"], top, num_top)


def _place(
    token: str, value: float | None, top: list[tuple[str, float | None]], num_top: int
) -> TokenLogprobs:
    """The API tells a token's text and not its id; ranks follow from the order."""
    ranked = sorted(top, key=lambda pair: -(pair[1] if pair[1] is not None else float("inf")))
    found = tuple(
        Logprob(None, _finite(one), rank, text)
        for rank, (text, one) in enumerate(ranked[:num_top], start=1)
    )
    rank = next((one.rank for one in found if one.token == token), None)
    return TokenLogprobs(Logprob(None, _finite(value), rank, token), found)


def _finite(value: float | None) -> float | None:
    known = value is not None and isfinite(value) and value > _MINUS_INFINITY
    return float(value) if known and value is not None else None


def embedded(
    requests: Sequence[Request], body: Mapping[str, Any], embedding: EmbeddingSettings
) -> list[Outcome]:
    """The outcomes of an embedding request.

    Raises:
        BrokenAnswer: a vector is missing.
        JobError: the vectors are shorter than the job wants them.
    """
    try:
        data = sorted(body["data"], key=lambda one: int(one["index"]))
        vectors = np.array([one["embedding"] for one in data], np.float32)
    except (KeyError, TypeError, ValueError) as error:
        raise BrokenAnswer(f"the answer has not OpenAI's form: {error!r}") from None
    if vectors.ndim != 2 or len(vectors) != len(requests):
        raise BrokenAnswer(f"{len(data)} vectors came for {len(requests)} inputs")
    if vectors.shape[1] < embedding.dimensions:
        raise JobError(
            f"embedding.dimensions is {embedding.dimensions}, but the endpoint's vectors have "
            f"{vectors.shape[1]} numbers",
            f"Set embedding.dimensions to {vectors.shape[1]} or less.",
        )
    return vector_outcomes([one.row for one in requests], finished(vectors, embedding))
