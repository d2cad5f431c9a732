"""A tool call that the row insists on: a constraint on the answer, and the answer read as calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from batchwright.core.errors import RowError
from batchwright.core.outcomes import More, Outcome, Sample

# Key in a row's extras; its value is the function's name, or "" where the model chooses.
FORCED_CALL = "forced_call"

_NO_PARAMETERS = {"type": "object", "properties": {}}


def forced_schema(
    tools: Sequence[Mapping[str, Any]], choice: Any, *, parallel: bool = True
) -> tuple[dict[str, Any], str]:
    """The JSON Schema of the answer that `tool_choice` asks for, and the name of the function.

    A named function's answer is its arguments; `required` makes a list of {name, parameters}.
    These are the schemas of vLLM's own server, so that the same answers come.

    Args:
        tools: of the row, in OpenAI's form.
        choice: `required`, or {type: function, function: {name}}.
        parallel: whether there may be several calls.

    Raises:
        RowError: `bad_messages`: there is no such tool, or a tool is no function.
    """
    functions = dict(_function(index, tool) for index, tool in enumerate(tools))
    if choice != "required":
        name = _named(choice)
        if name not in functions:
            raise RowError("bad_messages", f"tool_choice names {name!r}, which is not in tools")
        return functions[name], name
    if not functions:
        raise RowError("bad_messages", "tool_choice is required, but there are no tools")
    items = [
        {
            "properties": {
                "name": {"type": "string", "enum": [name]},
                "parameters": {k: v for k, v in schema.items() if k != "$defs"},
            },
            "required": ["name", "parameters"],
        }
        for name, schema in functions.items()
    ]
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": {"type": "object", "anyOf": items},
    }
    if not parallel:
        schema["maxItems"] = 1
    defined = {k: v for one in functions.values() for k, v in one.get("$defs", {}).items()}
    return (schema | {"$defs": defined} if defined else schema), ""


def _function(index: int, tool: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise RowError("bad_messages", f"tool {index} has no function.name")
    schema = function.get("parameters") or _NO_PARAMETERS
    if not isinstance(schema, dict):
        raise RowError("bad_messages", f"the parameters of tool {index} are no JSON Schema")
    return name, schema


def _named(choice: Any) -> str:
    function = choice.get("function", choice) if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise RowError(
            "bad_messages", "tool_choice is auto, none, required or names a function of tools"
        )
    return name


def with_forced_calls(outcome: Outcome, extras: str | None) -> Outcome:
    """The outcome with its text turned into tool calls, if its row insisted on them.

    A text that was cut off is no call: it stays as it is.
    """
    if not extras or f'"{FORCED_CALL}"' not in extras or outcome.error_code is not None:
        return outcome
    name = orjson.loads(extras)[FORCED_CALL]
    samples = outcome.more.samples if outcome.more is not None else ()
    text, reason, more = _read(outcome, name, f"call_{outcome.row}_0")
    others = tuple(
        sample._replace(text=words, finish_reason=why, more=further)
        for number, sample in enumerate(samples, start=1)
        for words, why, further in [_read(sample, name, f"call_{outcome.row}_{number}")]
    )
    if more is not None and others:
        more = more._replace(samples=others)
    return outcome._replace(text=text, finish_reason=reason, more=more)


def _read(
    answer: Outcome | Sample, name: str, call_id: str
) -> tuple[str | None, str | None, More | None]:
    """Text, finish reason and the rest of an answer, its calls taken out of the text."""
    functions = _functions(answer.text or "", name)
    if answer.finish_reason != "stop" or functions is None:
        return answer.text, answer.finish_reason, answer.more
    calls = tuple(
        {"id": f"{call_id}_{index}", "type": "function", "function": function}
        for index, function in enumerate(functions)
    )
    reason = answer.finish_reason if name else "tool_calls"  # OpenAI says `stop` for a named one
    return None, reason, (answer.more or More())._replace(tool_calls=calls)


def _functions(text: str, name: str) -> list[dict[str, str]] | None:
    """Names and arguments of the calls; None where the text is not what was asked for."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if name:
        return [{"name": name, "arguments": text}]
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        return None
    if not all(isinstance(one.get("name"), str) for one in value):
        return None
    return [
        {"name": one["name"], "arguments": orjson.dumps(one.get("parameters", {})).decode()}
        for one in value
    ]
