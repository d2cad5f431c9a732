"""Bodies of chat completions and completions: prompt, sampling fields and tool choice."""

from __future__ import annotations

from typing import Any

import orjson

from batchwright.core.errors import RowError
from batchwright.core.forced_calls import FORCED_CALL, forced_schema
from batchwright.core.sampling import ROW_NAMES
from batchwright.validate.asked import Asked, check_known, check_only, one_prompt
from batchwright.validate.messages import parse_template_kwargs, parse_tools

# They change nothing in the answer: bookkeeping, billing.
HARMLESS = frozenset(
    {"user", "metadata", "store", "service_tier", "stream_options", "safety_identifier",
     "prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls", "prediction",
     "request_id", "cache_salt", "stream", "model"}
)  # fmt: skip

# They would change the answer: only the values that change nothing are taken (null always is).
ONLY: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "truncate_prompt_tokens": (),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
    "suffix": ("",),
    "modalities": (["text"],),
    "audio": (),
    "functions": ([],),
    "function_call": (),
    "verbosity": (),
    "web_search_options": (),
    "add_special_tokens": (),
    "spaces_between_special_tokens": (True,),
    "include_reasoning": (True,),
}

# Fields of a chat body that are values for its template.
_TEMPLATE_VALUES = ("reasoning_effort", "add_generation_prompt", "continue_final_message")

SAMPLING = ROW_NAMES | {"max_completion_tokens"}
_CHAT_ONLY = {"messages", "tools", "tool_choice", "chat_template_kwargs", *_TEMPLATE_VALUES}
FIELDS = SAMPLING | HARMLESS | ONLY.keys() | _CHAT_ONLY | {"prompt"}


def read_chat(body: dict[str, Any]) -> Asked:
    """What a body for /v1/chat/completions asks. Raises RowError."""
    check_known(body, FIELDS)
    check_only(body, ONLY)
    _check_prompt(body, "messages", "prompt")
    sampling = sampling_fields(body)
    record = {
        name: body[name]
        for name in ("messages", "tools", "chat_template_kwargs")
        if body.get(name) is not None
    }
    kwargs = {name: body[name] for name in _TEMPLATE_VALUES if body.get(name) is not None}
    if kwargs:
        record["chat_template_kwargs"] = with_template_values(record, kwargs)
    extras = choose_tool(body.get("tool_choice"), record, sampling, body.get("parallel_tool_calls"))
    return Asked(record, sampling, extras=extras)


def read_completion(body: dict[str, Any]) -> Asked:
    """What a body for /v1/completions asks. Raises RowError."""
    check_known(body, FIELDS)
    check_only(body, ONLY)
    _check_prompt(body, "prompt", "messages")
    for name in _CHAT_ONLY & body.keys():
        if body[name] is not None:
            raise RowError("bad_envelope", f"/v1/completions has no field {name!r}")
    return Asked({"prompt": one_prompt(body["prompt"], "prompt")}, sampling_fields(body))


def sampling_fields(body: dict[str, Any]) -> dict[str, Any]:
    """The fields of a body that are sampling fields, one spelling for the cap of tokens."""
    fields = {
        name: value
        for name, value in body.items()
        if name in SAMPLING and value is not None and name not in ONLY
    }
    alias = fields.pop("max_completion_tokens", None)
    if alias is not None:
        fields["max_tokens"] = alias
    return fields


def with_template_values(record: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The row's values for its chat template with those that have a field of their own.

    As vLLM does, an effort switches thinking on or off for templates that ask for that instead.
    """
    given = parse_template_kwargs(record.get("chat_template_kwargs")) or {}
    effort = values.get("reasoning_effort")
    if effort is not None and "enable_thinking" not in given:
        values = {**values, "enable_thinking": effort != "none"}
    if values.get("continue_final_message"):
        values = {**values, "add_generation_prompt": False}
    return {**values, **given}


def choose_tool(
    choice: Any, record: dict[str, Any], sampling: dict[str, Any], parallel: Any
) -> str | None:
    """Bring `tool_choice` into record and sampling; returns the extras of the row.

    Raises:
        RowError: there is no such tool, or the answer has to keep to something else already.
    """
    if choice is None or choice == "auto":
        return None
    if choice == "none":
        record.pop("tools", None)
        return None
    tools = parse_tools(record.get("tools")) or []
    schema, name = forced_schema(tools, choice, parallel=parallel is not False)
    taken = [
        one
        for one in ("structured_outputs", "response_format", *sorted(sampling))
        if one in sampling and _constrains(one, sampling[one])
    ]
    if taken:
        raise RowError("bad_sampling", f"tool_choice and {taken[0]}: give one of them")
    sampling["structured_outputs"] = {"json": schema}
    return orjson.dumps({FORCED_CALL: name}).decode()


def _constrains(name: str, value: Any) -> bool:
    if name == "response_format":
        return not (isinstance(value, dict) and value.get("type") == "text")
    return name == "structured_outputs" or name.startswith("guided_")


def _check_prompt(body: dict[str, Any], needed: str, other: str) -> None:
    url = "/v1/chat/completions" if needed == "messages" else "/v1/completions"
    if body.get(needed) is None:
        raise RowError("missing_prompt", f"{url} needs body.{needed}")
    if body.get(other) is not None:
        raise RowError("ambiguous_prompt", f"{url} takes {needed}; body has {other} too")
