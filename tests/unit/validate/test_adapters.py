from __future__ import annotations

from typing import Any

import pytest

from batchwright.config.sections import Model
from batchwright.core.errors import RowError
from batchwright.validate.adapters import AdapterChoice

MODEL = Model(name="org/base", adapters={"one": "a", "two": "b"})


def choice(*, requests: bool = True, default: str | None = None) -> AdapterChoice:
    return AdapterChoice(MODEL.model_copy(update={"adapter": default}), requests=requests)


@pytest.mark.parametrize(
    ("row", "adapter"),
    [
        ({}, None),
        ({"adapter": "one"}, "one"),
        ({"adapter": None}, None),
        ({"model": "two"}, "two"),
        ({"model": "org/base"}, None),
        ({"adapter": "one", "model": "org/base"}, "one"),
    ],
)
def test_a_row_says_who_answers(row: dict[str, Any], adapter: str | None) -> None:
    assert choice().of_row(row) == adapter


def test_the_jobs_adapter_is_for_rows_that_name_none() -> None:
    assert choice(default="two").of_row({}) == "two"
    assert choice(default="two").named(None) == "two"
    assert choice(default="two").of_row({"adapter": "org/base"}) is None


def test_a_column_model_is_data_beside_a_template() -> None:
    assert choice(requests=False).of_row({"model": "Beetle"}) is None
    assert choice(requests=False).of_row({"adapter": "one"}) == "one"


@pytest.mark.parametrize("row", [{"adapter": "three"}, {"model": "gpt"}, {"adapter": 1}])
def test_an_unknown_name_lists_the_known_ones(row: dict[str, Any]) -> None:
    with pytest.raises(RowError, match="org/base nor one of the adapters: one, two") as raised:
        choice().of_row(row)
    assert raised.value.code == "unknown_adapter"


def test_without_adapters_the_columns_are_data() -> None:
    plain = AdapterChoice(Model(name="org/base"), requests=True)
    assert plain.of_row({"adapter": "x", "model": "y"}) is None
    assert plain.named("y") is None
    assert not plain
