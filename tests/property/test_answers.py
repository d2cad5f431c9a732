"""Whatever JSON is answered: what is said to be valid is, and means the same when compact."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from batchwright.constraints.answers import check_answer
from batchwright.core.structured import Constraint

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5).filter(
        lambda key: key.isprintable()), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def answer(text: str, schema: str = "{}") -> Any:
    return check_answer(Constraint("json", schema), text, cut=False)


@given(VALUES, st.sampled_from([None, 1, 3]), st.booleans())
def test_json_in_any_dress_is_valid_and_compact(
    value: Any, indent: int | None, ensure_ascii: bool
) -> None:
    found = answer(json.dumps(value, indent=indent, ensure_ascii=ensure_ascii))
    assert found.problem is None
    assert json.loads(found.parsed) == value
    assert len(found.parsed) <= len(
        json.dumps(value, separators=(",", ":"), ensure_ascii=ensure_ascii)
    )


@given(VALUES, st.data())
def test_json_that_is_cut_is_refused_unless_the_rest_is_json(
    value: Any, data: st.DataObject
) -> None:
    text = json.dumps({"v": value})
    head = text[: data.draw(st.integers(0, len(text) - 1))]
    assert answer(head).problem is not None


@given(st.text(max_size=30))
def test_any_text_has_a_verdict(text: str) -> None:
    found = answer(text)
    assert (found.parsed is None) == (found.problem is not None)
    if found.parsed is not None:
        json.loads(found.parsed, parse_constant=lambda name: 1 / 0)
