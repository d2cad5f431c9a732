"""Splits to rows: the one entrance for every format."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
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
    """The rows of a split in batches of at most `batch_rows`, in order, good and bad alike.

    A batch may hold no rows, when all its lines are blank. Raises InputError where the file
    breaks off, after the rows before that place.
    """
    rows = 0
    try:
        for batch in _batches(split, format, input_type, batch_rows):
            rows += len(batch.records)
            yield batch
    except Damaged as error:
        raise InputError(f"{split.path}: {error.reason} after {rows} rows", error.hint) from error
    except (FileNotFoundError, PermissionError) as error:
        hint = "Bring the file back as it was, and run again."
        raise InputError(f"{split.path}: {error.strerror}", hint) from error
    except OSError as error:
        hint = "Look after the disk, and run again."
        raise StorageError(f"{split.path}: {error.strerror or error}", hint) from error


def peek(
    files: Sequence[SourceFile], format: str, *, rows: int = 1, binary: Collection[str] = ()
) -> list[dict[str, Any]]:
    """The first good records, at most `rows` of them."""
    batches = _all_batches(files, format, max(rows, 64), binary)
    records = (record for batch in batches for record in batch.records if record is not None)
    return list(islice(records, rows))


def has_rows(files: Sequence[SourceFile], format: str, binary: Collection[str] = ()) -> bool:
    """Whether there is any row, good or bad; reads up to the first one."""
    return any(batch.records for batch in _all_batches(files, format, 64, binary))


def _all_batches(
    files: Sequence[SourceFile], format: str, batch_rows: int, binary: Collection[str]
) -> Iterator[RowBatch]:
    type_ = input_type(files, format, binary)
    for file in files:
        for split in cut_splits([file], format):
            yield from read_split(split, format, type_, batch_rows=batch_rows)


def _batches(
    split: Split, format: str, input_type: pa.DataType, batch_rows: int
) -> Iterator[RowBatch]:
    if format == "parquet":
        return read_parquet(split.path, split.start, split.stop, input_type, batch_rows)
    if format == "csv":
        return read_csv(split.path, batch_rows)
    if format == "json":
        return read_json_array(split.path, batch_rows)
    return read_jsonl(split.path, split.start, split.stop, batch_rows)
