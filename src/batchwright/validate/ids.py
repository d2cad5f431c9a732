"""Row ids: exact text, never rounded, trimmed or guessed."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from batchwright.core.errors import RowError


def row_id(value: Any) -> str:
    """The id as text: text as it is, an integer as its digits, a decimal with all of its places.

    Raises:
        RowError: `missing_id` for null and empty text, `bad_id` for anything else; floats are
            refused because they may have been rounded before they came here.
    """
    if type(value) is str:
        if value:
            return value
        raise RowError("missing_id", "the id is empty")
    if type(value) is int:
        return str(value)
    if type(value) is Decimal:  # exact, unlike a float: databases keep their keys as such
        return format(value, "f")
    if value is None:
        raise RowError("missing_id", "the row has no id")
    hint = "; floats may be rounded, store ids as text" if isinstance(value, float) else ""
    raise RowError("bad_id", f"the id is {value!r}, neither text nor an integer{hint}")


def text_id(value: Any) -> str:
    """The `custom_id` of an OpenAI batch line: text that is not empty.

    Raises:
        RowError: `missing_id` or `bad_id`.
    """
    if value is not None and type(value) is not str:
        raise RowError("bad_id", f"custom_id must be text, not {value!r}")
    return row_id(value)
