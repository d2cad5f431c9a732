"""Splits to rows: the one entrance for every format."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pyarrow as pa

from batchwright.core.errors import InputError, StorageError
from batchwright.core.records import RowBatch, SourceFile, Split
from batchwright.core.schemas import JSON_INPUT
from batchwright.read.compression import Damaged
from batchwright.read.csv_rows import read_csv
from batchwright.read.json_array import read_json_array
from batchwright.read.jsonl import read_jsonl
from batchwright.read.neighbours import in_turn, merged
from batchwright.read.parquet import read_parquet, unified_type
from batchwright.read.splits import cut_splits


def input_type(
    files: Sequence[SourceFile], format: str, binary: Collection[str] = ()
) -> pa.DataType:
    """Type of what is kept of a row: JSON text, or the struct of all Parquet columns.

    Binary columns that are not named in `binary` hold text.
    """
    return unified_type(files, binary) if format == "parquet" else JSON_INPUT


def read_split(
    split: Split, format: str, input_type: pa.DataType, *, batch_rows: int = 4096
) -> Iterator[RowBatch]:
    """The rows of a split in batches of about `batch_rows`, in order, good and bad alike.

    A batch may hold no rows, when all its lines are blank. Raises InputError where a file
    breaks off, after the rows before that place.
    """
    if not split.also:
        return _read_file(split, format, input_type, batch_rows)

    def read(path: str) -> Iterator[RowBatch]:
        piece = replace(split, path=path, also=())
        return _read_file(piece, format, input_type, batch_rows)

    return merged(in_turn(split.paths, read), batch_rows)


def _read_file(
    piece: Split, format: str, input_type: pa.DataType, batch_rows: int
) -> Iterator[RowBatch]:
    """The rows of a piece of one file."""
    rows = 0
    try:
        for batch in _batches(piece, format, input_type, batch_rows):
            rows += len(batch.records)
            yield replace(batch, paths=[piece.path] * len(batch.records))
    except Damaged as error:
        raise InputError(f"{piece.path}: {error.reason} after {rows} rows", error.hint) from error
    except (FileNotFoundError, PermissionError) as error:
        hint = "Bring the file back as it was, and run again."
        raise InputError(f"{piece.path}: {error.strerror}", hint) from error
    except OSError as error:
        hint = "Look after the disk, and run again."
        raise StorageError(f"{piece.path}: {error.strerror or error}", hint) from error


def peek(
    files: Sequence[SourceFile], format: str, type_: pa.DataType, *, rows: int = 1
) -> list[dict[str, Any]]:
    """The first good records, at most `rows` of them.

    Args:
        files: the input.
        format: of all of them.
        type_: see `input_type`.
        rows: that many at most.
    """
    batches = _all_batches(files, format, max(rows, 64), type_)
    records = (record for batch in batches for record in batch.records if record is not None)
    return list(islice(records, rows))


def has_rows(files: Sequence[SourceFile], format: str, type_: pa.DataType) -> bool:
    """Whether there is any row, good or bad; reads up to the first one."""
    return any(batch.records for batch in _all_batches(files, format, 64, type_))


def _all_batches(
    files: Sequence[SourceFile], format: str, batch_rows: int, type_: pa.DataType
) -> Iterator[RowBatch]:
    for file in files:
        for split in cut_splits([file], format):
            yield from read_split(split, format, type_, batch_rows=batch_rows)


def _batches(
    piece: Split, format: str, input_type: pa.DataType, batch_rows: int
) -> Iterator[RowBatch]:
    if format == "parquet":
        return read_parquet(piece.path, piece.start, piece.stop, input_type, batch_rows)
    if format == "csv":
        return read_csv(piece.path, batch_rows)
    if format == "json":
        return read_json_array(piece.path, batch_rows)
    return read_jsonl(piece.path, piece.start, piece.stop, batch_rows)
