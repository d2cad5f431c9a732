"""Parquet: one schema for all files, rows in batches, padding of nested columns taken out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from batchwright.core.errors import InputError
from batchwright.core.records import RowBatch, SourceFile
from batchwright.read.opening import each_in_order, open_bytes
from batchwright.rundir.locations import is_address

_TEXT = pa.large_string()

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"

# A batch holds about this much, whatever the number of rows that is asked for.
_BATCH_BYTES = 64 << 20

_CONFLICT_HINT = "Convert the files to one type, or run them as two jobs."


def row_group_ranges(path: str, split_bytes: int) -> Iterator[tuple[int, int]]:
    """Runs of row groups that hold up to about `split_bytes`, at least one group each."""
    with _open(path) as file:
        sizes = [
            file.metadata.row_group(group).total_byte_size
            for group in range(file.metadata.num_row_groups)
        ]
    start, held = 0, 0
    for group, size in enumerate(sizes):
        if group > start and held + size > split_bytes:
            yield start, group
            start, held = group, 0
        held += size
    if sizes:
        yield start, len(sizes)


def unified_type(files: Sequence[SourceFile], binary: Collection[str] = ()) -> pa.StructType:
    """The struct that holds every column of every file.

    Binary columns are taken for text, as old writers do not mark it; those named in `binary` hold
    bytes.
    """
    columns: dict[str, tuple[pa.DataType, str]] = {}
    last: list[pa.Field] = []
    paths = [file.path for file in files]
    found = each_in_order(lambda path: _fields(path, binary), paths)
    for path, fields in zip(paths, found, strict=True):
        if fields == last:
            continue
        last = fields
        for field in fields:
            columns[field.name] = _merged(columns.get(field.name), field, path)
    if not columns:
        raise InputError("the Parquet files have no columns", "Check input.path.")
    return pa.struct(
        [pa.field(name, _rebuilt(type_, _no_null)) for name, (type_, _) in columns.items()]
    )


def read_parquet(
    path: str, start: int, stop: int, input_type: pa.StructType, batch_rows: int
) -> Iterator[RowBatch]:
    """Rows of row groups [start, stop); all of them when `stop` is -1."""
    with _open(path) as file:
        metadata = file.metadata
        groups = range(start, metadata.num_row_groups if stop < 0 else stop)
        row = sum(metadata.row_group(group).num_rows for group in range(start))
        batches = file.iter_batches(
            batch_size=_batch_rows(metadata, groups, batch_rows),
            row_groups=list(groups),
            use_threads=False,
        )
        done = 0
        for batch in _guarded(path, batches):
            kept = _conformed(path, batch, input_type)
            done += len(kept)
            numbers = list(range(row, row + len(kept)))
            yield RowBatch(_records(kept), kept, numbers, {}, done)
            row += len(kept)


def _open(path: str) -> pq.ParquetFile:
    try:
        if is_address(path):  # the columns of a row group are fetched together
            return pq.ParquetFile(open_bytes(path), pre_buffer=True)
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from error


def _guarded(path: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(path, error) from error
        if batch is None:
            return
        yield batch


def _damaged(path: str, error: Exception) -> InputError:
    why = str(error).splitlines()[0] if str(error) else type(error).__name__
    return InputError(f"{path}: cannot be read as Parquet: {why}", "Copy or write the file again.")


def _batch_rows(metadata: pq.FileMetaData, groups: range, asked: int) -> int:
    rows: int = sum(metadata.row_group(group).num_rows for group in groups)
    size: int = sum(metadata.row_group(group).total_byte_size for group in groups)
    return max(1, min(asked, rows * _BATCH_BYTES // max(size, 1)))


def _fields(path: str, binary: Collection[str]) -> list[pa.Field]:
    """Columns of a file in plain types, then those that stand in its path."""
    with _open(path) as file:
        schema = file.schema_arrow
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise InputError(f"{path}: two columns are named {name!r}", "Rename one of them.")
    hive = [name for name in _partitions(path) if name not in schema.names]
    fields = [
        pa.field(field.name, _rebuilt(field.type, _as_it_is if field.name in binary else _plain))
        for field in schema
    ]
    return [*fields, *(pa.field(name, _TEXT) for name in hive)]


def _partitions(path: str) -> dict[str, str | None]:
    """The `key=value` folders of a path."""
    found: dict[str, str | None] = {}
    for part in Path(path).parts[:-1]:
        key, equals, value = part.partition("=")
        if key and equals:
            found[unquote(key)] = None if value == _HIVE_NULL else unquote(value)
    return found


def _merged(
    known: tuple[pa.DataType, str] | None, field: pa.Field, path: str
) -> tuple[pa.DataType, str]:
    if known is None or types.is_null(known[0]):
        return field.type, path
    if known[0] == field.type:
        return known
    try:
        both = [pa.schema([pa.field(field.name, known[0])]), pa.schema([field])]
        merged = pa.unify_schemas(both, promote_options="permissive").field(0).type
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise InputError(
            f"column {field.name!r} is {known[0]} in {known[1]} but {field.type} in {path}",
            _CONFLICT_HINT,
        ) from error
    return merged, known[1]


def _rebuilt(type_: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with `leaf` applied to all that is not nested, and only plain kinds of nesting."""
    if isinstance(type_, pa.BaseExtensionType):
        return _rebuilt(type_.storage_type, leaf)
    if types.is_struct(type_):
        return pa.struct([pa.field(field.name, _rebuilt(field.type, leaf)) for field in type_])
    if types.is_map(type_):
        return pa.map_(_rebuilt(type_.key_type, leaf), _rebuilt(type_.item_type, leaf))
    if types.is_large_list(type_) or types.is_large_list_view(type_):
        return pa.large_list(_rebuilt(type_.value_type, leaf))
    if types.is_list(type_) or types.is_list_view(type_) or types.is_fixed_size_list(type_):
        return pa.list_(_rebuilt(type_.value_type, leaf))
    return leaf(type_)


def _plain(type_: pa.DataType) -> pa.DataType:
    if types.is_dictionary(type_):
        return _plain(type_.value_type)
    views = types.is_string_view(type_) or types.is_binary_view(type_)
    if views or types.is_string(type_) or types.is_binary(type_) or types.is_large_binary(type_):
        return _TEXT
    return type_


def _as_it_is(type_: pa.DataType) -> pa.DataType:
    if types.is_binary(type_) or types.is_large_binary(type_) or types.is_binary_view(type_):
        return pa.large_binary()
    return _plain(type_)


def _no_null(type_: pa.DataType) -> pa.DataType:
    return _TEXT if types.is_null(type_) else type_


def _conformed(path: str, batch: pa.RecordBatch, input_type: pa.StructType) -> pa.StructArray:
    """The batch with the columns and types of `input_type`."""
    partitions = _partitions(path)
    columns = []
    for field in input_type:
        if field.name in batch.schema.names:
            columns.append(_cast(path, field, batch.column(field.name)))
        elif field.name in partitions:
            value = pa.scalar(partitions[field.name], _TEXT)
            columns.append(pa.repeat(value, batch.num_rows).cast(field.type))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.StructArray.from_arrays(columns, fields=list(input_type))


def _cast(path: str, field: pa.Field, column: pa.Array) -> pa.Array:
    if column.type == field.type:
        return column
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    try:
        # Arrow 26 casts list views to wrong lists.
        if "list_view" in str(column.type):
            return pa.array(column.to_pylist(), field.type)
        return column.cast(field.type)
    except pa.ArrowException as error:
        what = "holds bytes that are not UTF-8" if "UTF8" in str(error) else f"is no {field.type}"
        raise InputError(
            f"{path}: column {field.name!r} (type {column.type}) {what}: {error}",
            "Leave the column out, or write it in the type that the other files have.",
        ) from error


def _records(rows: pa.StructArray) -> list[dict[str, Any] | None]:
    columns = []
    for place, field in enumerate(rows.type):
        values = _readable(rows.field(place)).to_pylist()
        clean = _cleaner(field.type)
        columns.append([clean(value) for value in values] if clean else values)
    names = [field.name for field in rows.type]
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def _readable(column: pa.Array) -> pa.Array:
    """The column without nanoseconds, which Python's own times cannot hold."""
    type_ = _rebuilt(column.type, _no_nanoseconds)
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
            value and {key: inner[key](item) for key, item in value.items() if item is not None}
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
