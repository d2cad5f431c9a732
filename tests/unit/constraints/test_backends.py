from __future__ import annotations

from typing import Any

import pytest

from batchwright.constraints.backends import (
    backend_in_use,
    beyond_xgrammar,
    choose_backend,
    default_config,
)


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "number", "multipleOf": 2}, "multipleOf"),
        ({"type": ["null", "integer"], "multipleOf": 2}, "multipleOf"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "items": {"type": "array", "contains": {}}}, "contains"),
        ({"type": "string", "format": "phone"}, "format phone"),
        ({"type": "string", "pattern": "a+", "maxLength": 3}, "pattern together with maxLength"),
        ({"type": "string", "format": "date", "minLength": 3}, "format together with minLength"),
        ({"properties": {"a": {"allOf": [{}, {}]}}}, "allOf"),
        ({"type": "object", "patternProperties": {"a": {}, "b": {}}}, "several patternProperties"),
        ({"type": "object", "patternProperties": {"a": {}}, "properties": {}},
         "patternProperties together with properties"),
        ({"type": "object", "propertyNames": {"pattern": "a", "minLength": 1}},
         "propertyNames with pattern together with minLength"),
        ({"type": "object", "propertyNames": {}, "properties": {}},
         "propertyNames together with properties"),
        ({"type": "object", "propertyNames": {}, "unevaluatedProperties": False},
         "propertyNames together with unevaluatedProperties"),
    ],
)  # fmt: skip
def test_what_xgrammar_would_ignore_is_named(schema: dict[str, Any], keyword: str) -> None:
    assert beyond_xgrammar(schema) == keyword


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "a+"},
        {"type": "string", "maxLength": 3},
        {"type": "string", "format": "date"},
        {"allOf": [{"type": "string"}]},
        {"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": 3},
        {"type": "object", "patternProperties": {"a": {}}},
        {"properties": {"multipleOf": {"type": "string"}}},
    ],
)
def test_what_xgrammar_can_enforce_passes(schema: dict[str, Any]) -> None:
    assert beyond_xgrammar(schema) is None


def test_newer_structural_tags_are_for_xgrammar_and_all_else_for_guidance() -> None:
    assert choose_backend(None) == "guidance"
    assert choose_backend({"json": '{"type":"object"}'}) == "guidance"
    assert choose_backend({"structural_tag": '{"structures":[],"triggers":[]}'}) == "guidance"
    assert choose_backend({"structural_tag": '{"format":{"type":"any_text"}}'}) == "xgrammar"
    assert default_config(None) == {"backend": "guidance", "disable_any_whitespace": True}


def test_the_users_own_config_says_which_backend_is_in_use() -> None:
    assert backend_in_use(None, {}) == "guidance"
    config = {"structured_outputs_config": {"backend": "xgrammar"}}
    assert backend_in_use(None, config) == "xgrammar"
    assert backend_in_use(None, {"structured_outputs_config": {}}) == "auto", "as vLLM has it"


def test_of_other_engines_the_backend_is_not_known() -> None:
    assert backend_in_use(None, {}, "fake") == "guidance", "a dry run finds what the run would"
    assert backend_in_use(None, {}, "openai") == "unknown"
