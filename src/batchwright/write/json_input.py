"""The input's own columns, kept as JSON text: parsed without losing a digit, and typed."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from batchwright.core.errors import VerifyError
from batchwright.core.schemas import CONTRACT_NAMES

_DOUBLE_EXACT_MAX = 2**53

# orjson turns integers beyond 64 bits into floats, and floats lose digits beyond 17.
_LONG_NUMBER = "[0-9]{19}"
_BEYOND_DOUBLE = "[0-9]{16}"

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY  # vectors; they would take 30 times as long as lists

_SEPARATOR = "\x1e\x1ebatchwright"
_BORDER = b"," + orjson.dumps(_SEPARATOR) + b","

# Python refuses to make integers of more than 4300 digits from text.
_INT_DIGITS_MAX = 4000

_TYPES: dict[frozenset[str], pa.DataType] = {
    frozenset(): pa.large_string(),
    frozenset({"bool"}): pa.bool_(),
    frozenset({"int"}): pa.int64(),
    frozenset({"float"}): pa.float64(),
    frozenset({"int", "float"}): pa.float64(),
    frozenset({"string"}): pa.large_string(),
}


@dataclass(frozen=True, slots=True)
class ParsedRows:
    """JSON objects in two readings.

    Attributes:
        plain: usual Python values; NaN and infinities are floats.
        exact: values for writing JSON: numbers keep their digits, those not finite are None.
        loose: indices of the rows whose text is not strict JSON.
    """

    plain: list[dict[str, Any]]
    exact: list[dict[str, Any]]
    loose: frozenset[int]


def output_names(
    columns: Iterable[str], contract: Collection[str] = CONTRACT_NAMES
) -> dict[str, str]:
    """Each input column's name in the results: no two are the same, none is in the contract.

    `Text` and `text` are the same: to DuckDB, Spark and Delta they are, and a query for one would
    be answered with the other.
    """
    columns = list(columns)
    taken = {name.lower() for name in contract}
    names: dict[str, str] = {}
    for column in columns:
        if column.lower() not in taken:
            names[column] = column
            taken.add(column.lower())
    for column in columns:
        if column in names:
            continue
        name = f"input_{column}"
        while name.lower() in taken:
            name = f"input_{name}"
        names[column] = name
        taken.add(name.lower())
    return {column: names[column] for column in columns}


def parse_rows(texts: pa.Array) -> ParsedRows:
    """Parse JSON objects; null gives an object without members."""
    raw: list[str | None] = texts.to_pylist()
    plain, loose = _parse_strict(raw)
    slow = loose | _indices(pc.match_substring_regex(texts, _LONG_NUMBER))
    exact = plain
    if slow:
        exact = list(plain)
        for i in slow:
            text = raw[i] or "{}"
            plain[i] = _object(json.loads(text, parse_int=_plain_int))
            exact[i] = _object(
                json.loads(
                    text, parse_int=_exact_int, parse_float=_exact_float, parse_constant=_nothing
                )
            )
    return ParsedRows(plain, exact, frozenset(loose))


def _parse_strict(raw: list[str | None]) -> tuple[list[dict[str, Any]], set[int]]:
    loads = orjson.loads
    try:
        return [_object(loads(text)) if text is not None else {} for text in raw], set()
    except orjson.JSONDecodeError:
        pass
    plain: list[dict[str, Any]] = []
    loose = set()
    for i, text in enumerate(raw):
        try:
            plain.append(_object(loads(text)) if text is not None else {})
        except orjson.JSONDecodeError:
            plain.append({})
            loose.add(i)
    return plain, loose


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _plain_int(digits: str) -> int | None:
    return int(digits) if len(digits) < _INT_DIGITS_MAX else None


def _exact_int(digits: str) -> Any:
    return orjson.Fragment(digits)


def _exact_float(digits: str) -> Any:
    return orjson.Fragment(digits) if math.isfinite(float(digits)) else None


def _nothing(_name: str) -> None:
    return None


def _indices(mask: pa.Array) -> set[int]:
    return set(pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist())  # noqa: FBT003


def dump_json(value: Any) -> bytes:
    """Strict JSON in UTF-8; a lone surrogate becomes U+FFFD."""
    try:
        return orjson.dumps(value, option=_OPTIONS)
    except TypeError:
        return orjson.dumps(_without_surrogates(value), option=_OPTIONS)


def dump_each(values: Sequence[Any]) -> list[bytes]:
    """`dump_json` of each value, many times faster: one call costs orjson 3 µs, one value 0.2."""
    if not values:
        return []
    mixed: list[Any] = [_SEPARATOR] * (2 * len(values) - 1)
    mixed[::2] = values
    try:
        pieces = orjson.dumps(mixed, option=_OPTIONS)[1:-1].split(_BORDER)
    except TypeError:
        pieces = []
    # More pieces than values: somebody's data hold the separator.
    return pieces if len(pieces) == len(values) else [dump_json(value) for value in values]


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
    return value


def wide_integers(texts: Iterable[pa.Array], columns: Collection[str]) -> set[str]:
    """Those of `columns` that hold an integer which a double cannot hold."""
    found: set[str] = set()
    for array in texts:
        for row in parse_rows(array.filter(pc.match_substring_regex(array, _BEYOND_DOUBLE))).plain:
            found.update(name for name in columns if _is_wide(row.get(name, 0)))
    return found


def _is_wide(value: Any) -> bool:
    return isinstance(value, int) and abs(value) > _DOUBLE_EXACT_MAX


def mixed_numbers(column_kinds: Mapping[str, Collection[str]]) -> list[str]:
    """Columns with integers and floats and nothing else: doubles, unless integers are wide."""
    return [
        name for name, kinds in column_kinds.items() if set(kinds) - {"null"} == {"int", "float"}
    ]


def column_type(kinds: Collection[str]) -> pa.DataType | None:
    """The Arrow type of a column, or None where only JSON text can hold all of its values."""
    return _TYPES.get(frozenset(kinds) - {"null"})


def build_column(rows: ParsedRows, name: str, kind: pa.DataType | None) -> pa.Array:
    """One column of the rows; `kind` is from `column_type`."""
    if kind is None:
        # Null, NaN and infinities all come out as null; text that says so is quoted.
        texts = dump_each([row.get(name) for row in rows.exact])
        return pa.array(
            [None if text == b"null" else text for text in texts], pa.large_binary()
        ).cast(pa.large_string())
    values = [row.get(name) for row in rows.plain]
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        return pa.array([_without_surrogates(value) for value in values], kind)
    except (pa.ArrowException, OverflowError) as error:
        raise VerifyError(f"column {name!r} is not {kind} in every row: {error}") from error


def check_columns(rows: ParsedRows, known: Collection[str]) -> None:
    """No column may get lost because nobody announced it. Raises VerifyError."""
    present: set[str] = set()
    present.update(*rows.plain)
    if not present.issubset(known):
        lost = ", ".join(sorted(repr(name) for name in present.difference(known)))
        raise VerifyError(f"rows have columns that no receipt of a prepared part names: {lost}")
