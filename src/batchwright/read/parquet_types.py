"""Types of Parquet columns made plain, and binary columns: text that nobody marked, or bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

TEXT = pa.large_string()
UUID = pa.uuid()

# Of a column that may be text: so many values at most, of so much together.
_VALUES = 1000
_VALUES_BYTES = 8 << 20


def rebuilt(type_: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with `leaf` applied to all that is not nested, and only plain kinds of nesting."""
    if isinstance(type_, pa.BaseExtensionType):
        return rebuilt(type_.storage_type, leaf)
    if types.is_struct(type_):
        return pa.struct([pa.field(field.name, rebuilt(field.type, leaf)) for field in type_])
    if types.is_map(type_):
        return pa.map_(rebuilt(type_.key_type, leaf), rebuilt(type_.item_type, leaf))
    if types.is_large_list(type_) or types.is_large_list_view(type_):
        return pa.large_list(rebuilt(type_.value_type, leaf))
    if types.is_list(type_) or types.is_list_view(type_) or types.is_fixed_size_list(type_):
        return pa.list_(rebuilt(type_.value_type, leaf))
    return leaf(type_)


def plain(type_: pa.DataType) -> pa.DataType:
    """The type without dictionaries, views and widths; bytes are taken for text.

    A time zone that nobody here knows becomes UTC, which keeps the instants.
    """
    if types.is_dictionary(type_):
        return plain(type_.value_type)
    if types.is_timestamp(type_) and type_.tz and not _is_known_zone(type_.tz):
        return pa.timestamp(type_.unit, "UTC")
    views = types.is_string_view(type_) or types.is_binary_view(type_)
    if views or types.is_string(type_) or types.is_binary(type_) or types.is_large_binary(type_):
        return TEXT
    return type_


def as_it_is(type_: pa.DataType) -> pa.DataType:
    """The same, but bytes stay bytes."""
    if types.is_binary(type_) or types.is_large_binary(type_) or types.is_binary_view(type_):
        return pa.large_binary()
    return plain(type_)


def repeated(names: Sequence[str]) -> str | None:
    """The first name that is there twice, if any."""
    return next((name for at, name in enumerate(names) if name in names[:at]), None)


def repeated_within(type_: pa.DataType) -> str | None:
    """A name that a struct anywhere within the type has twice, if any."""
    if isinstance(type_, pa.BaseExtensionType):
        return repeated_within(type_.storage_type)
    if not types.is_nested(type_):
        return None
    fields = [type_.field(place) for place in range(type_.num_fields)]
    found = repeated([field.name for field in fields]) if types.is_struct(type_) else None
    within = (repeated_within(field.type) for field in fields)
    return found if found is not None else next((one for one in within if one is not None), None)


def uuid_texts(column: pa.Array) -> pa.Array:
    """UUIDs as everybody writes them: lower case, with hyphens."""
    values = [None if one is None else str(one) for one in column.to_pylist()]
    return pa.array(values, TEXT)


def _is_known_zone(zone: str) -> bool:
    try:
        pa.lib.string_to_tzinfo(zone)
    except (pa.ArrowException, ValueError, KeyError):
        return False
    return True


def no_null(type_: pa.DataType) -> pa.DataType:
    """A type for a column that is null in all files."""
    return TEXT if types.is_null(type_) else type_


def binary_columns(schema: pa.Schema) -> list[str]:
    """Columns with binary values anywhere within, which may be text or bytes."""
    return [one.name for one in schema if rebuilt(one.type, as_it_is) != rebuilt(one.type, plain)]


def bytes_columns(file: pq.ParquetFile, names: Sequence[str]) -> set[str]:
    """Those of some binary columns whose first values are no text.

    Raises:
        OSError, pa.ArrowException: the file is damaged.
    """
    metadata = file.metadata
    sizes = [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]
    row_bytes = max(1, sum(sizes) // max(1, metadata.num_rows))
    rows = max(1, min(_VALUES, _VALUES_BYTES // row_bytes))
    batch = next(file.iter_batches(batch_size=rows, columns=list(names), use_threads=False), None)
    if batch is None:
        return set()
    return {name for name in names if rows_that_are_no_text(batch.column(name))}


def rows_that_are_no_text(column: pa.Array) -> list[int]:
    """The rows with a binary value that is not UTF-8, anywhere within."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return [row for row, value in enumerate(column.to_pylist()) if not _is_text(value)]


def without(column: pa.Array, rows: Sequence[int]) -> pa.Array:
    """The column with null in some rows."""
    gone = set(rows)
    if "_view" in str(column.type):  # Arrow 26 cannot take from views
        values = column.to_pylist()
        left = [None if row in gone else value for row, value in enumerate(values)]
        return pa.array(left, column.type)
    kept = [None if row in gone else row for row in range(len(column))]
    return column.take(pa.array(kept, pa.int64()))


def _is_text(value: Any) -> bool:
    if isinstance(value, bytes):
        try:
            value.decode()
        except UnicodeDecodeError:
            return False
        return True
    if isinstance(value, dict):
        return all(map(_is_text, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_text, value))
    return True
