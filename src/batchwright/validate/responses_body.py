"""Bodies of /v1/responses: what one answer without state and server tools needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from batchwright.core.errors import RowError
from batchwright.core.sampling import ROW_NAMES
from batchwright.validate.asked import Asked, check_known, check_only
from batchwright.validate.text_bodies import choose_tool, with_template_values

_HARMLESS = frozenset(
    {"user", "metadata", "store", "service_tier", "stream_options", "safety_identifier",
     "prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls", "stream", "model",
     "request_id", "cache_salt"}
)  # fmt: skip

# State that lives on a server, tools that run on one, and what would change the answer.
_ONLY: dict[str, tuple[Any, ...]] = {
    "previous_response_id": (),
    "previous_input_messages": ([],),
    "conversation": (),
    "background": (False,),
    "prompt": (),
    "include": ([],),
    "truncation": ("disabled",),
    "max_tool_calls": (),
    "context_management": ([],),
    "top_logprobs": (0,),
}

# Of vLLM's fields, those that OpenAI's endpoint has, and those that only vLLM's has.
_SAMPLING = ROW_NAMES - {
    "n", "max_tokens", "logprobs", "top_logprobs", "response_format", "min_tokens",
}  # fmt: skip
_MAPPED = {"input", "instructions", "max_output_tokens", "text", "tools", "tool_choice",
           "reasoning", "chat_template_kwargs"}  # fmt: skip
FIELDS = _HARMLESS | _ONLY.keys() | _SAMPLING | _MAPPED

_TEXT_PARTS = ("input_text", "output_text", "text")


def read_response(body: dict[str, Any]) -> Asked:
    """What a body for /v1/responses asks, as messages and sampling fields. Raises RowError."""
    check_known(body, FIELDS)
    check_only(body, _ONLY)
    sampling = {k: v for k, v in body.items() if k in _SAMPLING and v is not None}
    if body.get("max_output_tokens") is not None:
        sampling["max_tokens"] = body["max_output_tokens"]
    shape = _text_format(body.get("text"))
    if shape is not None:
        sampling["response_format"] = shape
    record: dict[str, Any] = {"messages": _messages(body)}
    if body.get("tools"):
        record["tools"] = _tools(body["tools"])
    if body.get("chat_template_kwargs") is not None:
        record["chat_template_kwargs"] = body["chat_template_kwargs"]
    effort = _effort(body.get("reasoning"))
    if effort is not None:
        values = with_template_values(record, {"reasoning_effort": effort})
        record["chat_template_kwargs"] = values
    extras = choose_tool(body.get("tool_choice"), record, sampling, body.get("parallel_tool_calls"))
    return Asked(record, sampling, extras=extras)


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    given, ahead = body.get("input"), body.get("instructions")
    if given is None:
        raise RowError("missing_prompt", "/v1/responses needs body.input")
    if ahead is not None and not isinstance(ahead, str):
        raise RowError("unsupported", "instructions that are not text are not supported")
    turns = [] if ahead is None else [{"role": "system", "content": ahead}]
    if isinstance(given, str):
        if not given:
            raise RowError("empty_prompt", "body.input is empty")
        return [*turns, {"role": "user", "content": given}]
    if not isinstance(given, list):
        raise RowError("bad_messages", "body.input is neither text nor a list of items")
    if not given:
        raise RowError("empty_prompt", "body.input is an empty list")
    for index, item in enumerate(given):
        _add(turns, index, item)
    return turns


def _add(turns: list[dict[str, Any]], index: int, item: Any) -> None:
    """Append an item of the input; calls that follow each other are one turn of the assistant."""
    if not isinstance(item, dict):
        raise RowError("bad_messages", f"item {index} of body.input is not an object")
    kind = item.get("type", "message")
    read = _ITEMS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise RowError("unsupported", f"item {index} of body.input has the type {kind!r}")
    turn = read(index, item)
    last = turns[-1] if turns else {}
    if turn.get("tool_calls") and last.get("role") == "assistant":
        calls = [*last.get("tool_calls", []), *turn["tool_calls"]]
        turns[-1] = {**last, "tool_calls": calls}
    else:
        turns.append(turn)


def _message(index: int, item: dict[str, Any]) -> dict[str, Any]:
    content = item.get("content")
    if isinstance(content, list):
        content = [_part(index, part) for part in content]
    return {"role": item.get("role"), "content": content}


def _part(index: int, part: Any) -> Any:
    if isinstance(part, dict) and part.get("type") in _TEXT_PARTS:
        return {"type": "text", "text": part.get("text")}
    if isinstance(part, dict) and part.get("type") == "refusal":
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    raise RowError("unsupported", f"item {index} of body.input has a part of type {kind}")


def _call(_: int, item: dict[str, Any]) -> dict[str, Any]:
    function = {"name": item.get("name"), "arguments": item.get("arguments")}
    call = {"id": item.get("call_id"), "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _call_output(index: int, item: dict[str, Any]) -> dict[str, Any]:
    output = item.get("output")
    if isinstance(output, list):
        output = [_part(index, part) for part in output]
    return {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}


_ITEMS: dict[str, Callable[[int, dict[str, Any]], dict[str, Any]]] = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _call_output,
}


def _tools(value: Any) -> list[dict[str, Any]]:
    """Functions, flat as this endpoint has them, in the form of chat completions."""
    if not isinstance(value, list):
        raise RowError("bad_messages", "the tools are not a list")
    tools = []
    for index, tool in enumerate(value):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind != "function":
            raise RowError("unsupported", f"tools[{index}] has the type {kind!r}, not function")
        tools.append({"type": "function", "function": {k: tool[k] for k in tool if k != "type"}})
    return tools


def _text_format(text: Any) -> dict[str, Any] | None:
    """`text.format` as the `response_format` of chat completions."""
    if text is None:
        return None
    if not isinstance(text, dict):
        raise RowError("bad_envelope", "body.text is not an object")
    if text.get("verbosity") not in (None, "medium"):
        raise RowError("unsupported", "text.verbosity is not supported")
    shape = text.get("format")
    if not isinstance(shape, dict) or shape.get("type") != "json_schema":
        return shape if isinstance(shape, dict) else None
    named = {k: v for k, v in shape.items() if k != "type"}
    return {"type": "json_schema", "json_schema": named}


def _effort(reasoning: Any) -> Any:
    if reasoning is None:
        return None
    if not isinstance(reasoning, dict):
        raise RowError("bad_envelope", "body.reasoning is not an object")
    # A summary is text that another model makes of the thoughts.
    if reasoning.get("summary") not in (None, "auto") or reasoning.get("generate_summary"):
        raise RowError("unsupported", "reasoning.summary is not supported")
    return reasoning.get("effort")
