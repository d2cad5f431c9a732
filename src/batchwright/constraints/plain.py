"""Checks a constraint without a compiler: the meta-schema, references, and Python's own `re`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from batchwright.core.structured import Constraint

# vLLM's own bound; its grammar compilers take steeply longer with depth.
MAX_NESTING = 64


def plain_problem(constraint: Constraint) -> str | None:
    """What is wrong with a constraint, as far as it can be said without a grammar compiler."""
    kind, value = constraint
    if kind == "json":
        return _schema_problem(value)
    if kind == "structural_tag":
        return _tag_problem(value)
    if kind == "regex" and "\0" in value:
        return "the regex holds a NUL character"
    return None


def regex_problem(pattern: str) -> str | None:
    """What Python's `re` says of a pattern: for engines whose compiler is not at hand."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"not a regular expression: {error}"
    return None


def _tag_problem(text: str) -> str | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return f"structural_tag is no JSON: {error}"
    return None if isinstance(value, dict) else "structural_tag is not a JSON object"


def _schema_problem(text: str) -> str | None:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for

    schema = orjson.loads(text)
    if _depth(schema) > MAX_NESTING:
        return f"the schema is nested deeper than {MAX_NESTING} levels"
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except SchemaError as error:
        return f"not a JSON Schema: {error.json_path}: {error.message[:300]}"
    return _reference_problem(schema)


def _reference_problem(schema: dict[str, Any]) -> str | None:
    """References must lead to a place in the schema: nothing is fetched for a row."""
    from referencing import Registry
    from referencing.exceptions import CannotDetermineSpecification, Unresolvable
    from referencing.jsonschema import DRAFT202012

    base = str(schema.get("$id", ""))
    resolver = Registry().with_resource(base, DRAFT202012.create_resource(schema)).resolver(base)
    for reference in sorted(set(_references(schema))):
        try:
            resolver.lookup(reference)
        except (Unresolvable, CannotDetermineSpecification, ValueError, TypeError):
            return f"$ref {reference} leads to no place in the schema"
    return None


def _references(schema: Any) -> Iterator[str]:
    stack = [schema]
    while stack:
        one = stack.pop()
        if isinstance(one, dict):
            if isinstance(one.get("$ref"), str):
                yield one["$ref"]
            stack.extend(one.values())
        elif isinstance(one, list):
            stack.extend(one)


def _depth(value: Any) -> int:
    """Levels of nested objects and lists, found level by level and not by recursion."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [inner for one in level for inner in _inner(one)]
    return depth


def _inner(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value
