from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pytest

from batchwright.core.errors import JobError, RowError
from batchwright.core.sampling import row_sampling
from batchwright.validate import sampling
from batchwright.validate.sampling import RowSampling

DEFAULTS = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 100, "stop": "END"}


def resolve(row: dict[str, Any], defaults: dict[str, Any] | None = None) -> tuple[Any, int]:
    text, max_tokens = RowSampling(defaults or DEFAULTS, None).resolve(row)
    return json.loads(text), max_tokens


def test_defaults() -> None:
    assert resolve({"prompt": "x"}) == ({"temperature": 0.7, "top_p": 0.9, "stop": ["END"]}, 100)
    assert RowSampling({}, None).resolve({}) == ("{}", 512)


def test_row_overrides_and_null_is_not_given() -> None:
    row = {"prompt": "x", "temperature": 0, "top_p": None, "max_tokens": 3, "stop": []}
    assert resolve(row) == ({"temperature": 0.0, "top_p": 0.9, "stop": []}, 3)
    assert resolve({"temperature": None}) == resolve({})


def test_zero_stays_zero_and_int_equals_float() -> None:
    rows = RowSampling(DEFAULTS, None)
    assert rows.resolve({"temperature": 0}) == rows.resolve({"temperature": 0.0})
    assert rows.resolve({"temperature": 1}) == rows.resolve({"temperature": 1.0})


def test_equal_rows_share_one_text() -> None:
    rows = RowSampling(DEFAULTS, None)
    assert rows.resolve({"seed": 1, "a": 1})[0] is rows.resolve({"seed": 1, "a": 2})[0]


@pytest.mark.parametrize(
    ("row", "code", "word"),
    [
        ({"temperature": float("nan")}, "bad_sampling", "finite"),
        ({"temperature": float("inf")}, "bad_sampling", "finite"),
        ({"temperature": "0.7"}, "bad_sampling", "temperature"),
        ({"temperature": True}, "bad_sampling", "temperature"),
        ({"top_k": 1.5}, "bad_sampling", "top_k"),
        ({"seed": 10**30}, "bad_sampling", "seed"),
        ({"max_tokens": 0}, "bad_sampling", "max_tokens"),
        ({"stop": ""}, "bad_sampling", "stop"),
        ({"stop": ["a", ""]}, "bad_sampling", "stop"),
        ({"stop": [3]}, "bad_sampling", "stop"),
        ({"stop": datetime.date(2020, 1, 1)}, "bad_sampling", "stop"),
        ({"min_tokens": 200}, "bad_sampling", "min_tokens"),
        ({"n": 0}, "bad_sampling", "n:"),
        ({"n": 2, "temperature": 0}, "bad_sampling", "temperature 0"),
        ({"best_of": 2}, "unsupported", "best_of"),
        ({"logprobs": False, "top_logprobs": 3}, "bad_sampling", "logprobs: true"),
        ({"response_format": {"type": "xml"}}, "bad_sampling", "response_format.type"),
        ({"structured_outputs": {}}, "bad_sampling", "give one of"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "bad_sampling", "give one of"),
        ({"structured_outputs": {"choice": ["b", "b"]}}, "bad_sampling", "different texts"),
        ({"guided_json": "{"}, "bad_sampling", "no JSON"),
        ({"guided_regex": "a", "guided_json": {}}, "bad_sampling", "give one of them"),
    ],
)
def test_refuses(row: dict[str, Any], code: str, word: str) -> None:
    rows = RowSampling(DEFAULTS, None)
    for _ in range(2):
        with pytest.raises(RowError) as caught:
            rows.resolve(row)
        assert caught.value.code == code
        assert word in caught.value.message


SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        ({"n": 1}, {}),
        ({"n": 3}, {"n": 3}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 4}, {"logprobs": 4}),
        ({"logprobs": 2}, {"logprobs": 2}),
        ({"logprobs": False}, {}),
        ({"response_format": {"type": "text"}}, {}),
        (
            {"response_format": {"type": "json_object"}},
            {"structured_outputs": {"json_object": True}},
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            {"structured_outputs": {"json": json.dumps(SCHEMA, separators=(",", ":"))}},
        ),
        ({"guided_choice": ["yes", "no"]}, {"structured_outputs": {"choice": ["yes", "no"]}}),
        (
            {"structured_outputs": {"json": SCHEMA, "regex": None}},
            {"structured_outputs": {"json": json.dumps(SCHEMA, separators=(",", ":"))}},
        ),
    ],
)
def test_other_spellings(row: dict[str, Any], fields: dict[str, Any]) -> None:
    assert json.loads(RowSampling({}, None).resolve(row)[0]) == fields


def test_row_fields() -> None:
    row = {"temperature": 0.1, "seed": 4}
    assert RowSampling(DEFAULTS, frozenset()).resolve(row) == RowSampling(DEFAULTS, None).resolve(
        {}
    )
    only = RowSampling({}, frozenset({"seed"})).resolve(row)
    assert only == ('{"seed":4}', 512)


def test_job_errors() -> None:
    with pytest.raises(JobError, match="temperature"):
        RowSampling({"temperature": -1}, None)
    with pytest.raises(JobError, match="did you mean temperature"):
        RowSampling({}, frozenset({"temperatur"}))
    with pytest.raises(JobError, match="not supported"):
        RowSampling({}, frozenset({"best_of"}))


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_CACHE_SIZE", 8)
    rows = RowSampling(DEFAULTS, None)
    for seed in range(100):
        assert json.loads(rows.resolve({"seed": seed})[0])["seed"] == seed
    assert len(rows._cache) <= 8


@pytest.mark.parametrize(
    ("fields", "shortest"),
    [({}, 1), ({"min_tokens": 0}, 1), ({"min_tokens": 7}, 7), ({"stop": '"min_tokens"'}, 1)],
)
def test_the_shortest_answer(fields: dict[str, Any], shortest: int) -> None:
    text, _ = RowSampling(fields, None).resolve({})
    assert sampling.shortest_answer(text) == shortest


@pytest.mark.parametrize(
    ("given", "means"),
    [
        ({"max_tokens": 5.0}, {"max_tokens": 5}),
        ({"max_tokens": Decimal(5), "seed": 7.0}, {"max_tokens": 5, "seed": 7}),
        ({"temperature": Decimal("0.5")}, {"temperature": 0.5}),
        ({"logit_bias": {5: 1.0}}, {"logit_bias": {"5": 1.0}}),
        ({"response_format": '{"type": "json_object"}'}, {"response_format": {"type": "json_object"}}),
    ],
)  # fmt: skip
def test_what_tables_make_of_numbers_and_objects(
    given: dict[str, Any], means: dict[str, Any]
) -> None:
    """A column of integers with one missing value is one of floats in pandas."""
    assert row_sampling(given) == row_sampling(means)


@pytest.mark.parametrize(
    "given",
    [
        {"max_tokens": 5.5}, {"max_tokens": float("nan")}, {"max_tokens": float("inf")},
        {"seed": 2.0**60}, {"max_tokens": Decimal("5.5")}, {"max_tokens": Decimal("NaN")},
        {"temperature": Decimal("NaN")}, {"max_tokens": True}, {"response_format": "json_object"},
    ],
)  # fmt: skip
def test_what_would_be_a_guess_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(RowError) as caught:
        row_sampling(given)
    assert caught.value.code == "bad_sampling"
