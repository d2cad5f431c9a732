"""Structured output: a JSON Schema, a regex, choices or a grammar that an answer must keep to."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

# vLLM's StructuredOutputsParams: exactly one of the first, any of the second.
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")

# Former names of vLLM (up to 0.11), which job files and batch files still use.
GUIDED = {
    "guided_json": "json", "guided_regex": "regex", "guided_choice": "choice",
    "guided_grammar": "grammar", "guided_json_object": "json_object",
}  # fmt: skip


class Constraint(NamedTuple):
    """One of KINDS and what it holds: a text, or for `choice` a list, for `json_object` true."""

    kind: str
    value: Any


def constraint_of(structured: Mapping[str, Any]) -> Constraint:
    """The constraint in checked structured outputs, without their options."""
    return next(Constraint(kind, structured[kind]) for kind in KINDS if kind in structured)


def constraint_in(sampling: str) -> Constraint | None:
    """The constraint in the canonical JSON of a row's sampling fields.

    Nearly no row has one: the others cost the search for a word.
    """
    return _read_constraint(sampling) if '"structured_outputs"' in sampling else None


@lru_cache(maxsize=4096)
def _read_constraint(sampling: str) -> Constraint | None:
    structured = orjson.loads(sampling).get("structured_outputs")
    return None if structured is None else constraint_of(structured)


def check_structured(value: Mapping[str, Any]) -> dict[str, Any]:
    """One form for equal meanings: a JSON Schema becomes its text, with its keys in their order.

    The order is that in which the engine makes the properties, so it must outlive sorting.

    Raises:
        ValueError: none or several of KINDS are given, or one has a wrong type.
    """
    given = {key: item for key, item in value.items() if item is not None and item is not False}
    unknown = [key for key in given if key not in (*KINDS, *OPTIONS)]
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}; there are {', '.join((*KINDS, *OPTIONS))}")
    kinds = [key for key in KINDS if key in given]
    if len(kinds) != 1:
        raise ValueError(f"give one of {', '.join(KINDS)}")
    kind = kinds[0]
    given[kind] = _checked(kind, given[kind])
    return given


def _checked(kind: str, value: Any) -> Any:
    if kind == "json":
        return _schema_text(value)
    if kind == "json_object":
        if value is not True:
            raise ValueError("json_object is true or false")
    elif kind == "choice":
        texts = isinstance(value, list) and all(isinstance(item, str) and item for item in value)
        if not texts or not value or len(set(value)) < len(value):
            raise ValueError("choice is a list of different texts that are not empty")
    elif not isinstance(value, str) or not value:
        raise ValueError(f"{kind} is a text that is not empty")
    return value


def _schema_text(value: Any) -> str:
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"json is text but no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("json is a JSON Schema: an object")
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:
        raise ValueError(f"json holds what JSON cannot: {error}") from None


def from_response_format(value: Any) -> dict[str, Any] | None:
    """OpenAI's `response_format`, or its JSON text, as structured outputs; None for plain text.

    Raises:
        ValueError: it is none of OpenAI's forms.
    """
    if isinstance(value, str):  # columns of tables cannot hold schemas of many shapes
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"response_format is text but no JSON: {error}") from None
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    if kind == "json_schema":
        wrapped = value.get("json_schema")
        schema = wrapped.get("schema") if isinstance(wrapped, Mapping) else None
        if not isinstance(schema, dict):
            raise ValueError("response_format.json_schema.schema is missing")
        return {"json": schema}
    if kind == "structural_tag":
        return {"structural_tag": orjson.dumps(value).decode()}
    raise ValueError("response_format.type is one of text, json_object, json_schema")
