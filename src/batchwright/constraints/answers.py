"""Whether an answer keeps to its constraint: engines let some through that do not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from batchwright.core.structured import Constraint

# A pattern such as (a+)+$ takes time that doubles with each character of an answer.
MATCH_TIMEOUT_S = 0.5

MESSAGE_LENGTH = 300


class Verdict(NamedTuple):
    """What an answer is worth: `parsed` is its compact JSON text, `problem` why it is none.

    Another answer would be `hopeless` too where the constraint itself cannot be checked.
    """

    parsed: str | None = None
    problem: str | None = None
    hopeless: bool = False


def check_answer(constraint: Constraint, text: str, *, cut: bool) -> Verdict:
    """Check the text of an answer.

    A grammar cannot be checked here; an answer that was cut is no sentence of it, as good as
    always. A structural tag leaves the text around its tags free, and is not checked at all.

    Args:
        constraint: what it must keep to.
        text: of the answer, without thoughts and end tokens.
        cut: whether it ended at `max_tokens`.
    """
    kind, value = constraint
    try:
        if kind == "json":
            return _check_json(text, _validator(value))
        if kind == "json_object":
            return _check_json(text, None)
        if kind == "regex":
            return _check_regex(text, value)
    except TimeoutError:
        problem = f"matching the pattern took longer than {MATCH_TIMEOUT_S:g} s"
        hint = "; it must do without repetitions of repetitions"
        return Verdict(problem=problem + hint, hopeless=True)
    if kind == "choice" and text not in value:
        return Verdict(None, f"{_short(repr(text))} is none of the choices")
    if kind == "grammar" and cut:
        return Verdict(None, "the answer ends before the grammar does")
    return Verdict()


def _check_json(text: str, validator: Any) -> Verdict:
    try:
        value = read_strict(text)
    except ValueError as error:
        return Verdict(None, f"no valid JSON: {error}")
    if validator is None:
        if isinstance(value, dict):
            return Verdict(compact(text))
        return Verdict(None, f"a JSON {type(value).__name__} where an object is asked for")
    try:
        from jsonschema.exceptions import best_match

        found = best_match(validator.iter_errors(value))
    except RecursionError:
        return Verdict(None, "the schema refers to itself without end, or the answer is too deep")
    if found is not None:
        return Verdict(None, f"{found.json_path}: {_short(found.message)}")
    return Verdict(compact(text))


def _check_regex(text: str, pattern: str) -> Verdict:
    matcher = _matcher(pattern)
    if matcher is None or matcher.fullmatch(text, timeout=MATCH_TIMEOUT_S):
        return Verdict()
    return Verdict(None, f"{_short(repr(text))} does not match {_short(pattern)}")


def read_strict(text: str) -> Any:
    """JSON as the standard has it, with each key of an object once. Raises ValueError.

    orjson refuses NaN, numbers beyond a double, lone surrogates and control characters; Python's
    own reader can look at repeated keys, and keeps integers of any size.
    """
    orjson.loads(text)
    try:
        return json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return found


_SPACES = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+')


def compact(text: str) -> str:
    """Valid JSON without white space between its tokens; numbers stay as they are spelled."""
    return _SPACES.sub(lambda found: found[1] or "", text)


def _short(text: str) -> str:
    """A message without its middle if it is long: the value comes first, what is wrong last."""
    half = MESSAGE_LENGTH // 2
    return text if len(text) <= MESSAGE_LENGTH else f"{text[:half]} … {text[-half:]}"


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> Any:
    """The pattern as Python reads it; None where only the engine's own dialect knows it."""
    import regex

    try:
        return regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError):
        return None


@lru_cache(maxsize=1024)
def _validator(schema: str) -> Any:
    """The validator of a schema. Formats are notes, as JSON Schema has it; nothing is fetched."""
    from jsonschema.validators import Draft202012Validator, extend, validator_for
    from referencing import Registry

    content = orjson.loads(schema)
    base = validator_for(content, default=Draft202012Validator)
    ours: dict[str, Callable[..., Iterator[Any]]] = {
        "pattern": _pattern,
        "multipleOf": _multiple_of,
    }
    known = {name: check for name, check in ours.items() if name in base.VALIDATORS}
    return extend(base, known)(content, registry=Registry())


def _pattern(validator: Any, pattern: str, value: Any, _schema: Any) -> Iterator[Any]:
    """As the library's own, but with an end to the search."""
    from jsonschema.exceptions import ValidationError

    if not validator.is_type(value, "string"):
        return
    matcher = _matcher(pattern)
    if matcher is not None and not matcher.search(value, timeout=MATCH_TIMEOUT_S):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _multiple_of(validator: Any, factor: Any, value: Any, _schema: Any) -> Iterator[Any]:
    """Exact, since 0.3 is no multiple of 0.1 in binary."""
    from jsonschema.exceptions import ValidationError

    if not validator.is_type(value, "number"):
        return
    if Fraction(repr(value)) % Fraction(repr(factor)):
        yield ValidationError(f"{value!r} is not a multiple of {factor}")
