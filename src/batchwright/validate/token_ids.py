"""Prompts given as lists of token ids."""

from __future__ import annotations

from typing import Any

from batchwright.core.errors import RowError


def parse_token_ids(value: list[Any]) -> list[int]:
    """One flat list of integers; floats pass when they are exact integers.

    Raises:
        RowError: `empty_prompt`, `bad_prompt` for several prompts in a row, `bad_token_ids`.
    """
    if not value:
        raise RowError("empty_prompt", "the list of token ids is empty")
    kinds = set(map(type, value))
    if kinds == {int}:
        return value
    if kinds == {str} or list in kinds or tuple in kinds:
        raise RowError("bad_prompt", "the prompt is a list of prompts; give one prompt per row")
    if kinds == {dict}:
        raise RowError("bad_prompt", "the prompt is a list of objects; name it as messages")
    return [_exact(index, item) for index, item in enumerate(value)]


def _exact(index: int, item: Any) -> int:
    if type(item) is int:
        return item
    if type(item) is float and item.is_integer():
        return int(item)
    raise RowError("bad_token_ids", f"item {index} of the prompt is no token id: {item!r}")


def check_token_ids(ids: list[int], vocab_size: int) -> None:
    """Refuse ids that the model does not have.

    Raises:
        RowError: `bad_token_ids` naming the first such id.
    """
    if min(ids) < 0 or max(ids) >= vocab_size:
        bad = next(token for token in ids if not 0 <= token < vocab_size)
        raise RowError(
            "bad_token_ids", f"token id {bad} lies outside the vocabulary of {vocab_size}"
        )
