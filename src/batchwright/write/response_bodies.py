"""Answers as OpenAI's response objects: chat, completion, embedding list, response."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Row = Mapping[str, Any]

# What OpenAI-compatible servers say in place of minus infinity.
_LEAST_LOGPROB = -9999.0

CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Responses:
    """What the response objects of a run have in common.

    Attributes:
        model: its name as the objects show it.
        run_id: a hash that every id begins with, so that the same run gives the same bytes.
        created: Unix time of the run.
        as_vllm: whether failed rows stand among the others, in the form of `vllm run-batch`.
        end_token_id: the token that ends an answer as a rule; it is no reason worth naming.
        envelopes: whether the rows are OpenAI batch lines, each with its endpoint and its body.
        main_url: endpoint of rows that name none.
    """

    model: str
    run_id: str
    created: int
    as_vllm: bool = False
    end_token_id: int | None = None
    envelopes: bool = True
    main_url: str = CHAT

    def body(self, row: Row, url: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """The response object of an answered row.

        Args:
            row: its columns of the output contract, vectors as arrays.
            url: the endpoint.
            request: the body of the row's own line; empty where it had none.
        """
        make = _BODIES.get(url, _chat)
        return make(self, row, request)


def _chat(common: Responses, row: Row, request: Mapping[str, Any]) -> dict[str, Any]:
    choices = [
        {
            "index": index,
            "message": _message(answer),
            "logprobs": _chat_logprobs(answer["logprobs"]),
            "finish_reason": answer["finish_reason"],
            "stop_reason": _stop_reason(common, answer["stop_reason"], request),
        }
        for index, answer in enumerate(_answers(row))
    ]
    return {
        "id": f"chatcmpl-{common.run_id}-{row['row']}",
        "object": "chat.completion",
        "created": common.created,
        "model": common.model,
        "choices": choices,
        "usage": _usage(row),
    }


def _completion(common: Responses, row: Row, request: Mapping[str, Any]) -> dict[str, Any]:
    choices = [
        {
            "index": index,
            "text": answer["text"],
            "logprobs": _completion_logprobs(answer["logprobs"]),
            "finish_reason": answer["finish_reason"],
            "stop_reason": _stop_reason(common, answer["stop_reason"], request),
        }
        for index, answer in enumerate(_answers(row))
    ]
    return {
        "id": f"cmpl-{common.run_id}-{row['row']}",
        "object": "text_completion",
        "created": common.created,
        "model": common.model,
        "choices": choices,
        "usage": _usage(row),
    }


def _embeddings(common: Responses, row: Row, request: Mapping[str, Any]) -> dict[str, Any]:
    vector: Any = row["embedding"]
    if request.get("encoding_format") == "base64":
        vector = base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
    return {
        "id": f"embd-{common.run_id}-{row['row']}",
        "object": "list",
        "created": common.created,
        "model": common.model,
        "data": [{"object": "embedding", "index": 0, "embedding": vector}],
        "usage": {
            "prompt_tokens": row["prompt_tokens"],
            "total_tokens": row["prompt_tokens"],
            "completion_tokens": 0,
        },
    }


def _response(common: Responses, row: Row, request: Mapping[str, Any]) -> dict[str, Any]:
    answer = _answers(row)[0]
    cut = answer["finish_reason"] == "length"
    usage = _usage(row)
    return {
        "id": f"resp_{common.run_id}_{row['row']}",
        "object": "response",
        "created_at": common.created,
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": request.get("instructions"),
        "max_output_tokens": request.get("max_output_tokens"),
        "metadata": request.get("metadata") or {},
        "model": common.model,
        "output": _items(f"{common.run_id}_{row['row']}", answer, complete=not cut),
        "parallel_tool_calls": request.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "temperature": request.get("temperature"),
        "text": request.get("text") or {"format": {"type": "text"}},
        "tool_choice": request.get("tool_choice") or "auto",
        "tools": request.get("tools") or [],
        "top_p": request.get("top_p"),
        "truncation": "disabled",
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }


def _items(ids: str, answer: Row, *, complete: bool) -> list[dict[str, Any]]:
    """What was put out, in order: thoughts, text, calls."""
    status = "completed" if complete else "incomplete"
    items: list[dict[str, Any]] = []
    if answer["reasoning"] is not None:
        thoughts = [{"type": "reasoning_text", "text": answer["reasoning"]}]
        items.append({"type": "reasoning", "id": f"rs_{ids}", "summary": [], "content": thoughts})
    if _content(answer) is not None:
        part = {"type": "output_text", "text": answer["text"], "annotations": []}
        items.append(
            {
                "type": "message",
                "id": f"msg_{ids}",
                "role": "assistant",
                "status": status,
                "content": [part],
            }
        )
    for index, call in enumerate(answer["tool_calls"] or ()):
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{ids}_{index}",
                "call_id": call["id"],
                **call["function"],
                "status": "completed",
            }
        )
    return items


_BODIES: dict[str, Callable[[Responses, Row, Mapping[str, Any]], dict[str, Any]]] = {
    CHAT: _chat,
    "/v1/completions": _completion,
    "/v1/embeddings": _embeddings,
    "/v1/responses": _response,
}


def _answers(row: Row) -> list[Row]:
    """All answers of a row; one without `choices` is its own only answer."""
    return list(row["choices"] or [row])


def _message(answer: Row) -> dict[str, Any]:
    message = {"role": "assistant", "content": _content(answer), "refusal": None}
    if answer["tool_calls"]:
        message["tool_calls"] = answer["tool_calls"]
    if answer["reasoning"] is not None:  # vLLM's name, and the one that it had before
        message["reasoning"] = message["reasoning_content"] = answer["reasoning"]
    return message


def _content(answer: Row) -> str | None:
    """The text; null, and not an empty one, where the model thought or called instead."""
    text: str | None = answer["text"]
    if not text and (answer["tool_calls"] or answer["reasoning"] is not None):
        return None
    return text


def _stop_reason(
    common: Responses, reason: str | None, request: Mapping[str, Any]
) -> int | str | None:
    """What ended the answer, where it was not the usual end: a text of the row, or a token's id."""
    if reason is None or not reason.isdecimal():
        return reason
    stop = request.get("stop")
    if reason == stop or (isinstance(stop, list) and reason in stop):
        return reason
    return None if int(reason) == common.end_token_id else int(reason)


def _usage(row: Row) -> dict[str, Any]:
    prompt, completion = row["prompt_tokens"] or 0, row["completion_tokens"] or 0
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": row["cached_tokens"] or 0},
    }


def _chat_logprobs(places: list[Row] | None) -> dict[str, Any] | None:
    if places is None:
        return None
    content = [
        {**_token(place), "top_logprobs": [_token(one) for one in place["top"]]} for place in places
    ]
    return {"content": content}


def _token(one: Row) -> dict[str, Any]:
    token = one["token"] or ""
    return {
        "token": token,
        "logprob": _number(one["logprob"]),
        "bytes": list(token.encode("utf-8", "replace")),
    }


def _number(logprob: float | None) -> float:
    return _LEAST_LOGPROB if logprob is None else max(logprob, _LEAST_LOGPROB)


def _completion_logprobs(places: list[Row] | None) -> dict[str, Any] | None:
    if places is None:
        return None
    tokens = [place["token"] or "" for place in places]
    offsets, at = [], 0
    for token in tokens:
        offsets.append(at)
        at += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [_number(place["logprob"]) for place in places],
        "top_logprobs": [
            {(one["token"] or ""): _number(one["logprob"]) for one in (place, *place["top"])}
            for place in places
        ],
        "text_offset": offsets,
    }
