"""Which of vLLM's backends enforces a job's constraints, and what xgrammar cannot enforce."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

CONFIG_OPTION = "structured_outputs_config"  # vLLM's own name of the engine option

_LENGTHS = ("minLength", "maxLength")
_ARRAY_KEYWORDS = ("uniqueItems", "contains", "minContains", "maxContains")
_XGRAMMAR_FORMATS = frozenset(
    {"email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri",
     "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"}
)  # fmt: skip


def choose_backend(structured: Mapping[str, Any] | None) -> str:
    """The backend for a job with this constraint of its own; None if only rows bring some.

    guidance let through no answer that breaks its constraint where xgrammar did, knows more of JSON
    Schema, and refuses what it does not know. It lacks one thing: the newer structural tags.
    """
    tag = (structured or {}).get("structural_tag")
    return "xgrammar" if tag is not None and '"structures"' not in tag else "guidance"


def default_config(structured: Mapping[str, Any] | None) -> dict[str, Any]:
    """VLLM's structured outputs config for a job that gives none of its own.

    White space between tokens is forbidden: with it, small models make blanks until they are cut
    off. vLLM's `auto` cannot do that, since not every backend behind it can.
    """
    return {"backend": choose_backend(structured), "disable_any_whitespace": True}


def backend_in_use(
    structured: Mapping[str, Any] | None, options: Mapping[str, Any], engine: str = "vllm"
) -> str:
    """The backend that the engine will use, by its options and the job's own constraint.

    Of an engine that is not vLLM nobody knows it (`unknown`); a dry run stands for one of vLLM's.
    """
    if engine not in ("vllm", "fake"):
        return "unknown"
    given = options.get(CONFIG_OPTION)
    if given is None:
        return choose_backend(structured)
    return str(given.get("backend", "auto")) if isinstance(given, Mapping) else "auto"


def beyond_xgrammar(schema: Any) -> str | None:
    """The first thing in a JSON Schema that xgrammar ignores or gets wrong, in words.

    The same rule as vLLM's own, which refuses such schemas unless it may use another backend.
    """
    for part in _parts(schema):
        types = _types(part)
        found = (
            _of_values(part, types)
            or ("object" in types and _of_objects(part))
            or (len(part["allOf"]) > 1 and "allOf" if _is(part, "allOf", list) else None)
        )
        if found:
            return str(found)
    return None


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Every object in a schema; a stack, since a schema may be nested deeper than Python's."""
    stack = [schema]
    while stack:
        one = stack.pop()
        if isinstance(one, dict):
            yield one
            stack.extend(one.values())
        elif isinstance(one, list):
            stack.extend(one)


def _is(part: Mapping[str, Any], key: str, kind: type) -> bool:
    return isinstance(part.get(key), kind)


def _types(part: Mapping[str, Any]) -> set[str]:
    given = part.get("type")
    given = given if isinstance(given, list) else [given]
    return {one for one in given if isinstance(one, str)}


def _of_values(part: Mapping[str, Any], types: set[str]) -> str | None:
    if types & {"integer", "number"} and "multipleOf" in part:
        return "multipleOf"
    if "array" in types:
        array = next((key for key in _ARRAY_KEYWORDS if key in part), None)
        if array is not None:
            return array
    if "string" not in types:
        return None
    if "format" in part and part["format"] not in _XGRAMMAR_FORMATS:
        return f"format {part['format']}"
    return _pattern_and_length(part)


def _pattern_and_length(part: Mapping[str, Any]) -> str | None:
    shape = next((key for key in ("pattern", "format") if key in part), None)
    length = next((key for key in _LENGTHS if key in part), None)
    return f"{shape} together with {length}" if shape and length else None


def _of_objects(part: Mapping[str, Any]) -> str | None:
    names, patterns = part.get("propertyNames"), part.get("patternProperties")
    if names is not None:
        if isinstance(names, dict) and (found := _pattern_and_length(names)):
            return f"propertyNames with {found}"
        for other in ("patternProperties", "properties"):
            if other in part:
                return f"propertyNames together with {other}"
        if part.get("unevaluatedProperties", True) is not True:
            return "propertyNames together with unevaluatedProperties"
    if isinstance(patterns, dict):
        if "properties" in part:
            return "patternProperties together with properties"
        if len(patterns) > 1:
            return "several patternProperties"
    return None
