"""Parquet: one schema for all files, rows in batches, padding of nested columns taken out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from batchwright.core.errors import InputError
from batchwright.core.records import RowBatch, SourceFile
from batchwright.read.opening import each_in_order, open_bytes
from batchwright.read.parquet_records import no_text, records_of
from batchwright.read.parquet_types import (
    TEXT,
    UUID,
    as_it_is,
    binary_columns,
    bytes_columns,
    no_null,
    plain,
    rebuilt,
    repeated,
    repeated_within,
    rows_that_are_no_text,
    uuid_texts,
    without,
)
from batchwright.rundir.locations import is_address

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"

# A batch holds about this much, whatever the number of rows that is asked for.
_BATCH_BYTES = 64 << 20

# To look at the first values of a column that may hold images; of so many files: a bucket may
# have thousands, and what does not show here costs a row each later.
_LITTLE_BYTES = 1 << 16
FILES_LOOKED_INTO = 8

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

    Binary columns are taken for text where their first values are text, as old writers do not mark
    it; those named in `binary` hold bytes.
    """
    columns: dict[str, tuple[pa.DataType, str]] = {}
    last: list[pa.Field] = []
    paths = [file.path for file in files]
    schemas = list(zip(paths, each_in_order(_schema, paths), strict=True))
    held = {*binary, *_bytes_among(schemas, binary)}
    for path, schema in schemas:
        fields = _fields(path, schema, held)
        if fields == last:
            continue
        last = fields
        for field in fields:
            columns[field.name] = _merged(columns.get(field.name), field, path)
    if not columns:
        raise InputError("the Parquet files have no columns", "Check input.path.")
    return pa.struct(
        [pa.field(name, rebuilt(type_, no_null)) for name, (type_, _) in columns.items()]
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
            spoilt: dict[int, str] = {}
            kept = _conformed(path, batch, input_type, spoilt)
            done += len(kept)
            numbers = list(range(row, row + len(kept)))
            records = records_of(kept, spoilt)
            if spoilt:
                kept = without(kept, list(spoilt))
                records = [None if index in spoilt else one for index, one in enumerate(records)]
            yield RowBatch(records, kept, numbers, no_text(spoilt), done)
            row += len(kept)


def _open(path: str, buffer_size: int = 0) -> pq.ParquetFile:
    """The file; with a `buffer_size` it is read in such pieces, and not by whole columns."""
    try:
        if is_address(path):  # the columns of a row group are fetched together
            bytes_ = open_bytes(path)
            return pq.ParquetFile(bytes_, pre_buffer=not buffer_size, buffer_size=buffer_size)
        return pq.ParquetFile(path, buffer_size=buffer_size)
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


def _schema(path: str) -> pa.Schema:
    with _open(path) as file:
        schema = file.schema_arrow
    twice = repeated(schema.names)
    if twice is not None:
        raise InputError(f"{path}: two columns are named {twice!r}", "Rename one of them.")
    for field in schema:
        twice = repeated_within(field.type)
        if twice is not None:
            raise InputError(
                f"{path}: column {field.name!r} has two fields named {twice!r}",
                "Rename one of them.",
            )
    return schema


def _bytes_among(schemas: Sequence[tuple[str, pa.Schema]], known: Collection[str]) -> set[str]:
    """The binary columns that hold no text, by the first values of some files."""
    found: set[str] = set()
    left = FILES_LOOKED_INTO
    for path, schema in schemas:
        unsure = [
            name for name in binary_columns(schema) if name not in found and name not in known
        ]
        if not unsure:
            continue
        if not left:
            break
        left -= 1
        try:
            with _open(path, buffer_size=_LITTLE_BYTES) as file:
                found |= bytes_columns(file, unsure)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(path, error) from error
    return found


def _fields(path: str, schema: pa.Schema, binary: Collection[str]) -> list[pa.Field]:
    """Columns of a file in plain types, then those that stand in its path."""
    hive = [name for name in _partitions(path) if name not in schema.names]
    fields = [
        pa.field(field.name, _plain_type(field.type, as_it_is if field.name in binary else plain))
        for field in schema
    ]
    return [*fields, *(pa.field(name, TEXT) for name in hive)]


def _plain_type(type_: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """UUIDs become text: bytes could be neither ids nor part of a prompt."""
    return TEXT if type_ == UUID else rebuilt(type_, leaf)


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


def _conformed(
    path: str, batch: pa.RecordBatch, input_type: pa.StructType, spoilt: dict[int, str]
) -> pa.StructArray:
    """The batch with the columns and types of `input_type`; `spoilt` gets rows that are no text."""
    partitions = _partitions(path)
    columns = []
    for field in input_type:
        if field.name in batch.schema.names:
            columns.append(_cast(path, field, batch.column(field.name), spoilt))
        elif field.name in partitions:
            value = pa.scalar(partitions[field.name], TEXT)
            columns.append(pa.repeat(value, batch.num_rows).cast(field.type))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.StructArray.from_arrays(columns, fields=list(input_type))


def _cast(path: str, field: pa.Field, column: pa.Array, spoilt: dict[int, str]) -> pa.Array:
    """The column in its type; a value that is no text spoils its own row only."""
    if column.type == field.type:
        return column
    if column.type == UUID:
        return uuid_texts(column)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    try:
        # Arrow 26 casts list views to wrong lists.
        if "list_view" in str(column.type):
            return pa.array(column.to_pylist(), field.type)
        return column.cast(field.type)
    except pa.ArrowException as error:
        bad = rows_that_are_no_text(column) if "UTF8" in str(error) else []
        if not bad:
            raise InputError(
                f"{path}: column {field.name!r} (type {column.type}) is no {field.type}: {error}",
                "Leave the column out, or write it in the type that the other files have.",
            ) from error
        for row in bad:
            spoilt.setdefault(row, field.name)
        return without(column, bad).cast(field.type)
