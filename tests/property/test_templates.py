"""The short cut for plain templates gives what Jinja gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchwright.core.errors import RowError
from batchwright.validate.templates import RowTemplate

VALUES = st.one_of(
    st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.integers())
)
PIECES = st.lists(
    st.one_of(
        st.text(alphabet=st.characters(exclude_characters="{}%#")),
        st.sampled_from(["{{ a }}", "{{b}}", "{{ range }}", "{{- a -}}", "{# note #}"]),
    )
)


def slow(template: RowTemplate) -> RowTemplate:
    template._pieces = None
    return template


def result(template: RowTemplate, row: dict[str, Any]) -> str:
    try:
        return template.render(row)
    except RowError as error:
        return f"error {error}"


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pieces=PIECES, row=st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES))
def test_short_cut_equals_jinja(pieces: list[str], row: dict[str, Any]) -> None:
    source = "".join(pieces)
    assert result(RowTemplate(source), row) == result(slow(RowTemplate(source)), row)


@pytest.mark.parametrize("source", ["{{ a }} {{ b }}", "plain"])
def test_plain_templates_take_the_short_cut(source: str) -> None:
    assert RowTemplate(source)._pieces is not None


def test_filters_do_not() -> None:
    assert RowTemplate("{{ a | upper }}")._pieces is None
