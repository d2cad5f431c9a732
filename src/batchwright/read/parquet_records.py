"""Rows of Parquet columns as Python objects, padding of nested columns taken out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyarrow import types

from batchwright.core.struct import Struct
from batchwright.read.parquet_types import rebuilt


def records_of(rows: pa.StructArray, spoilt: dict[int, str]) -> list[dict[str, Any] | None]:
    """The rows as templates and checks see them: plain values, objects without their padding.

    Args:
        rows: a field for each column.
        spoilt: gets the rows with text that is not UTF-8, and its column.
    """
    columns = []
    for place, field in enumerate(rows.type):
        values = _values(_readable(rows.field(place)), field.name, spoilt)
        clean = _cleaner(field.type)
        columns.append([clean(value) for value in values] if clean else values)
    names = [field.name for field in rows.type]
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def no_text(spoilt: Mapping[int, str]) -> dict[int, tuple[str, str]]:
    """The problem of each spoilt row, as code and message."""
    return {
        row: ("bad_unicode", f"column {name!r} holds bytes that are not UTF-8")
        for row, name in spoilt.items()
    }


def _values(column: pa.Array, name: str, spoilt: dict[int, str]) -> list[Any]:
    """The column's values; text that is no UTF-8, which some writers let through, spoils its row.

    A time that Python cannot hold is null here only: what is kept of the row has it. Databases
    write "for ever" as one, in columns that no prompt needs.
    """
    try:
        return list(column.to_pylist())
    except (UnicodeDecodeError, OverflowError):
        values: list[Any] = []
        for row, one in enumerate(column):
            try:
                values.append(one.as_py())
            except OverflowError:
                values.append(None)
            except UnicodeDecodeError:
                values.append(None)
                spoilt.setdefault(row, name)
        return values


def _readable(column: pa.Array) -> pa.Array:
    """The column without nanoseconds, which Python's own times cannot hold."""
    type_ = rebuilt(column.type, _no_nanoseconds)
    return column if type_ == column.type else column.cast(type_, safe=False)


def _no_nanoseconds(type_: pa.DataType) -> pa.DataType:
    if getattr(type_, "unit", None) != "ns":
        return type_
    if types.is_timestamp(type_):
        return pa.timestamp("us", type_.tz)
    return pa.duration("us") if types.is_duration(type_) else pa.time64("us")


def _cleaner(type_: pa.DataType) -> Callable[[Any], Any] | None:
    """Makes plain objects of nested values; None where there is nothing to do.

    Arrow gives each struct every key that any struct of the column has: a null there is padding.
    """
    if types.is_struct(type_):
        inner = {field.name: _cleaner(field.type) or _same for field in type_}
        return lambda value: (
            value
            and Struct(
                {key: inner[key](item) for key, item in value.items() if item is not None},
                inner.keys(),
            )
        )
    if types.is_map(type_):
        clean_item = _cleaner(type_.item_type) or _same
        return lambda value: (
            None if value is None else {key: clean_item(item) for key, item in value}
        )
    if types.is_list(type_) or types.is_large_list(type_):
        element = _cleaner(type_.value_type)
        if element is not None:
            return lambda value: value and [element(item) for item in value]
    return None


def _same(value: Any) -> Any:
    return value
