"""Answers on disk: text, thoughts, tool calls, parsed values, samples and log probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa

from batchwright.core.outcomes import Logprob, More, Outcome, Sample, TokenLogprobs
from batchwright.core.schemas import CHOICES, LOGPROBS, TOOL_CALLS

# Columns that hold JSON text in Parquet and the value itself in JSON lines.
_JSON_TEXT = "parsed"

_NOTHING = More()


def answer_columns(outcomes: Sequence[Outcome], spelled: Mapping[int, str]) -> dict[str, pa.Array]:
    """What was generated, as columns of a part.

    Args:
        outcomes: in the order of the part.
        spelled: the text of each token that log probabilities name.
    """
    return {
        "text": pa.array([one.text for one in outcomes], pa.large_string()),
        "finish_reason": pa.array([one.finish_reason for one in outcomes], pa.string()),
        "stop_reason": pa.array([one.stop_reason for one in outcomes], pa.string()),
        "completion_tokens": pa.array([one.num_output_tokens for one in outcomes], pa.int32()),
        "cached_tokens": pa.array([one.cached_tokens for one in outcomes], pa.int32()),
        **_further_columns(outcomes, spelled),
    }


def _further_columns(
    outcomes: Sequence[Outcome], spelled: Mapping[int, str]
) -> dict[str, pa.Array]:
    """What only some requests ask for; where no row of a part did, there is nothing to look at."""
    if all(one.more is None for one in outcomes):
        empty = pa.nulls(len(outcomes), pa.large_string())
        return {
            "reasoning": empty,
            "tool_calls": pa.nulls(len(outcomes), TOOL_CALLS),
            "parsed": empty,
            "choices": pa.nulls(len(outcomes), CHOICES),
            "logprobs": pa.nulls(len(outcomes), LOGPROBS),
        }
    further = [one.more or _NOTHING for one in outcomes]
    return {
        "reasoning": pa.array([more.reasoning for more in further], pa.large_string()),
        "tool_calls": pa.array([_calls(more) for more in further], TOOL_CALLS),
        "parsed": pa.array([more.parsed for more in further], pa.large_string()),
        "choices": pa.array([_choices(one, spelled) for one in outcomes], CHOICES),
        "logprobs": pa.array([_logprobs(more, spelled) for more in further], LOGPROBS),
    }


def _calls(more: More) -> list[dict[str, Any]] | None:
    return None if more.tool_calls is None else list(more.tool_calls)


def _choices(outcome: Outcome, spelled: Mapping[int, str]) -> list[dict[str, Any]] | None:
    """Every answer of a row that asked for several."""
    if outcome.more is None or not outcome.more.samples:
        return None
    answers: list[Outcome | Sample] = [outcome, *outcome.more.samples]
    return [_choice(index, answer, spelled) for index, answer in enumerate(answers)]


def _choice(index: int, answer: Outcome | Sample, spelled: Mapping[int, str]) -> dict[str, Any]:
    more = answer.more or _NOTHING
    return {
        "index": index,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
        # An engine that tells no ids counts the tokens of all answers together only.
        "completion_tokens": None
        if answer.text and not answer.token_ids
        else len(answer.token_ids),
        "reasoning": more.reasoning,
        "tool_calls": _calls(more),
        "parsed": more.parsed,
        "logprobs": _logprobs(more, spelled),
    }


def _logprobs(more: More, spelled: Mapping[int, str]) -> list[dict[str, Any]] | None:
    if more.logprobs is None:
        return None
    return [_token(place, spelled) for place in more.logprobs]


def _token(place: TokenLogprobs, spelled: Mapping[int, str]) -> dict[str, Any]:
    return {**_logprob(place.chosen, spelled), "top": [_logprob(one, spelled) for one in place.top]}


def _logprob(one: Logprob, spelled: Mapping[int, str]) -> dict[str, Any]:
    return {
        "token": one.token if one.token_id is None else spelled.get(one.token_id),
        "token_id": one.token_id,
        "logprob": one.logprob,
        "rank": one.rank,
    }


def json_answers(part: pa.Table) -> dict[str, list[Any]]:
    """The columns whose JSON form is not that of their Arrow values."""
    shown: dict[str, list[Any]] = {}
    if _JSON_TEXT in part.column_names:
        parsed = part.column(_JSON_TEXT)
        if parsed.null_count < len(parsed):
            shown[_JSON_TEXT] = [_fragment(text) for text in parsed.to_pylist()]
        choices = part.column("choices")
        if choices.null_count < len(choices):
            shown["choices"] = [_with_values(row) for row in choices.to_pylist()]
    return shown


def _fragment(text: str | None) -> Any:
    return None if text is None else orjson.Fragment(text)


def _with_values(choices: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    if choices is None:
        return None
    return [{**one, _JSON_TEXT: _fragment(one[_JSON_TEXT])} for one in choices]
