"""Messages brought to the roles that a strict chat template knows: user and assistant in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_INSTRUCTIONS = ("system", "developer")
_GLUE = "\n\n"


def merge_roles(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Instructions ahead of the first user message, and neighbours of one role as one message.

    Tool calls and their answers stay as they are. The input is not changed.
    """
    said = [turn["content"] for turn in messages if turn["role"] in _INSTRUCTIONS]
    said = [content for content in said if content]
    turns = [dict(turn) for turn in messages if turn["role"] not in _INSTRUCTIONS]
    if said:
        first = next((turn for turn in turns if turn["role"] == "user"), None)
        if first is None:
            turns.insert(0, {"role": "user", "content": _joined(said)})
        else:
            first["content"] = _joined([*said, first["content"]])
    merged: list[dict[str, Any]] = []
    for turn in turns:
        before = merged[-1] if merged else {}
        if turn.keys() == before.keys() == {"role", "content"} and turn["role"] == before["role"]:
            before["content"] = _joined([before["content"], turn["content"]])
        else:
            merged.append(turn)
    return merged


def _joined(contents: Sequence[Any]) -> Any:
    """Contents one after the other: texts as one text; with media among them, as parts."""
    if all(isinstance(content, str) for content in contents):
        return _GLUE.join(contents)
    parts: list[dict[str, Any]] = []
    for content in contents:
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return parts
