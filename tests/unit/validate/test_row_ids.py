from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from batchwright.core.errors import RowError
from batchwright.validate.ids import row_id, text_id


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (9007199254740993, "9007199254740993"),
        (11400714819323198549, "11400714819323198549"),
        (-1, "-1"),
        (0, "0"),
        ("007", "007"),
        ("a ", "a "),
        ("null", "null"),
        (Decimal("12345678901234567890"), "12345678901234567890"),
        (Decimal("1E+3"), "1000"),
        (Decimal("7.50"), "7.50"),
    ],
)
def test_exact_text(value: Any, text: str) -> None:
    assert row_id(value) == text


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (None, "missing_id"), ("", "missing_id"), (True, "bad_id"), (7.0, "bad_id"),
        (float("nan"), "bad_id"), ([1], "bad_id"), ({}, "bad_id"), (b"x", "bad_id"),
    ],
)  # fmt: skip
def test_refuses(value: Any, code: str) -> None:
    with pytest.raises(RowError) as caught:
        row_id(value)
    assert caught.value.code == code


def test_custom_id_is_text() -> None:
    assert text_id("17") == "17"
    for value, code in [(17, "bad_id"), (None, "missing_id"), ("", "missing_id"), (True, "bad_id")]:
        with pytest.raises(RowError) as caught:
            text_id(value)
        assert caught.value.code == code
