"""Chat messages and tools: checked, and brought to the one form that chat templates read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from batchwright.core.errors import RowError
from batchwright.core.media import MediaReference
from batchwright.validate.media import PART_KEYS, MediaForms

ROLES = frozenset({"system", "user", "assistant", "tool", "developer"})

_UNSUPPORTED = frozenset({"video", "video_url", "file", "input_file"})

_PLAIN_KEYS = {"role", "content"}


class Found(list[MediaReference]):
    """The media of some messages, in order; `at` is where the messages stand in their row."""

    def __init__(self, forms: MediaForms, at: Sequence[str | int]) -> None:
        super().__init__()
        self.forms = forms
        self.at = at


def parse_messages(value: Any, found: Found | None = None) -> list[dict[str, Any]]:
    """A list of messages, or the JSON text of one, as chat templates want it.

    Text parts become one text (joined by line feeds, as vLLM does) where no media stand among
    them, null keys are dropped, and the arguments of tool calls become objects. The input is not
    changed.

    Args:
        value: the messages.
        found: takes the images and sounds; without it they are refused.

    Raises:
        RowError: `bad_messages` naming the index, `empty_prompt`, `unsupported` for other media,
            `bad_media` and `media_forbidden`.
    """
    messages = _json_list(value, "messages")
    if not messages:
        raise RowError("empty_prompt", "the list of messages is empty")
    return [_message(index, message, found) for index, message in enumerate(messages)]


def parse_tools(value: Any) -> list[dict[str, Any]] | None:
    """The row's tools: a list of objects, or the JSON text of one; None when there are none."""
    if value is None:
        return None
    tools = _json_list(value, "tools")
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise RowError("bad_messages", f"tool {index} is not an object")
    return tools or None


# What is said in other ways than through the chat template's values.
_RESERVED_KWARGS = frozenset(
    {"messages", "conversation", "tools", "chat_template", "tokenize", "return_dict",
     "return_tensors", "return_assistant_tokens_mask", "padding", "truncation", "max_length",
     "tokenizer_kwargs"}
)  # fmt: skip


def parse_template_kwargs(value: Any) -> dict[str, Any] | None:
    """Values for the chat template: an object, or the JSON text of one; None when there are none.

    Raises:
        RowError: `bad_messages`.
    """
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            message = f"chat_template_kwargs are text but no JSON: {error}"
            raise RowError("bad_messages", message) from None
    if value is None:
        return None
    if not isinstance(value, Mapping):
        message = f"chat_template_kwargs are not an object but {_kind(value)}"
        raise RowError("bad_messages", message)
    given = {name: item for name, item in value.items() if item is not None}
    for name in sorted(_RESERVED_KWARGS & given.keys()):
        raise RowError("bad_messages", f"chat_template_kwargs: {name} is not for the template")
    return given or None


def _json_list(value: Any, what: str) -> list[Any]:
    if isinstance(value, str):
        if not value:
            raise RowError("empty_prompt", f"the {what} are an empty text")
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise RowError("bad_messages", f"the {what} are text but no JSON: {error}") from None
    if not isinstance(value, list):
        raise RowError("bad_messages", f"the {what} are not a list but {_kind(value)}")
    return value


def _message(index: int, message: Any, found: Found | None) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise RowError("bad_messages", f"message {index} is not an object but {_kind(message)}")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        known = ", ".join(sorted(ROLES))
        raise RowError("bad_messages", f"message {index} has the role {role!r}; known: {known}")
    if type(message.get("content")) is str and message.keys() == _PLAIN_KEYS:
        return message
    clean = {key: item for key, item in message.items() if item is not None}
    if not clean.get("tool_calls"):
        clean.pop("tool_calls", None)
    else:
        clean["tool_calls"] = _tool_calls(index, clean["tool_calls"])
    clean["content"] = _content(index, clean, found)
    return clean


def _content(
    index: int, message: dict[str, Any], found: Found | None
) -> str | list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None:
        # vLLM renders a tool call's missing content as empty text too.
        if "tool_calls" in message:
            return ""
        raise RowError("bad_messages", f"message {index} has no content")
    if not isinstance(content, list):
        raise RowError(
            "bad_messages", f"the content of message {index} is neither text nor a list of parts"
        )
    parts = [_part(index, number, part, found) for number, part in enumerate(content)]
    if any(part["type"] != "text" for part in parts):
        return parts
    return "\n".join(part["text"] for part in parts)


def _part(index: int, number: int, part: Any, found: Found | None) -> dict[str, Any]:
    """A part of a message in one of two forms: a text, or the place of an image or a sound."""
    kind = part.get("type") if isinstance(part, dict) else None
    said = part.get(kind) if kind in ("text", "refusal") else None
    if isinstance(said, str):
        return {"type": "text", "text": said}
    if kind in _UNSUPPORTED or (kind in PART_KEYS and found is None):
        raise RowError("unsupported", f"message {index} has a part of type {kind}")
    if kind in PART_KEYS and found is not None:
        found.append(found.forms.from_part(part, [*found.at, index, "content", number]))
        return {"type": PART_KEYS[kind][0]}
    raise RowError("bad_messages", f"message {index} has a part that is no {{type, text}}")


def _tool_calls(index: int, calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise RowError("bad_messages", f"the tool_calls of message {index} are not a list")
    return [_tool_call(index, call) for call in calls]


def _tool_call(index: int, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowError("bad_messages", f"message {index} has a tool call without function.name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments or "{}")
        except orjson.JSONDecodeError:
            arguments = False
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise RowError(
            "bad_messages", f"message {index} has tool call arguments that are no JSON object"
        )
    return {**call, "function": {**function, "arguments": arguments}}


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    return "null" if value is None else type(value).__name__
