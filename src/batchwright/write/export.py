"""Committed parts to results: one format, one size, input order, the same bytes every time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa

from batchwright.config.job import ResultFormat
from batchwright.core.records import Receipt
from batchwright.core.schemas import INPUT_COLUMN, JSON_INPUT, part_schema
from batchwright.core.tasks import GENERATE, TaskSettings
from batchwright.rundir.locations import Location
from batchwright.write.ahead import PartStorage
from batchwright.write.bucket_folder import ResultBucket
from batchwright.write.files import JsonlWriter, ParquetWriter, ResultFolder, ResultWriter
from batchwright.write.json_input import mixed_numbers, wide_integers
from batchwright.write.merge import input_arrays, windows
from batchwright.write.openai_batch import LINE, BatchWriter
from batchwright.write.response_bodies import Responses
from batchwright.write.results import Columns, ResultShape, make_shape

_WRITERS: dict[ResultFormat, Callable[[ResultFolder, ResultShape, int], ResultWriter]] = {
    "parquet": ParquetWriter,
    "jsonl": JsonlWriter,
}


def export_results(
    *,
    parts: Sequence[Receipt],
    rejected: Iterable[pa.Table],
    storage: PartStorage,
    out_dir: Location,
    format: ResultFormat,
    input_type: pa.DataType,
    column_kinds: Mapping[str, Collection[str]],
    columns: Columns,
    target_file_bytes: int,
    total_rows: int,
    task: TaskSettings = GENERATE,
    responses: Responses | None = None,
) -> list[Location]:
    """Write every row of the input exactly once, in order, and return the files.

    Equal rows give equal bytes, whatever the chunks, the parts and the order of commits were.

    Args:
        parts: receipts of all generations, in any order; the newest outcome of a row wins.
        rejected: tables with row, id, error_code, error and input, in order of rows.
        storage: where the parts are.
        out_dir: folder of the results, made if it does not exist; or `s3://bucket/folder`.
        format: `parquet` or `jsonl`; others need `responses`.
        input_type: type of the column `input` of the parts.
        column_kinds: JSON kinds seen in each column over the whole data, in order of appearance.
        columns: the input's own columns to keep.
        target_file_bytes: a file is closed once it has this size.
        total_rows: rows of the input.
        task: which says what the results have in the place of a text.
        responses: of response objects, where those are wanted; `columns` says nothing then.

    Raises:
        VerifyError: a row has no result or more than one.
        StorageError, JobError: a file cannot be read or written; no row has one of `columns`.
    """
    kept = list(rejected) if isinstance(rejected, Iterator) else rejected  # gone through twice
    folder = _folder(out_dir, f".{format}" if responses is None else ".jsonl")
    schema = part_schema(input_type, task)
    writer: ResultWriter
    if responses is None:
        typed = input_type == JSON_INPUT and format == "parquet"
        wide = _wide(parts, kept, storage, column_kinds) if typed else set()
        shape = make_shape(input_type, column_kinds, wide, columns, task)
        writer = _WRITERS[format](folder, shape, target_file_bytes)
    else:
        schema = schema.append(LINE)
        writer = BatchWriter(folder, responses, task)
    return _write(writer, folder, partial(windows, parts, kept, storage, schema, total_rows))


def _folder(out_dir: Location, suffix: str) -> ResultFolder:
    return (
        ResultFolder(out_dir, suffix)
        if isinstance(out_dir, Path)
        else ResultBucket(out_dir, suffix)
    )


def _write(
    writer: ResultWriter, folder: ResultFolder, tables: Callable[[Path], Iterator[pa.Table]]
) -> list[Location]:
    """Write tables that need a scratch folder, and return the files once all are there."""
    with _closed_or_aborted(writer), folder.scratch() as scratch:
        for table in tables(scratch):
            writer.add(table)
    folder.succeed()
    return folder.finished


def _wide(
    parts: Sequence[Receipt],
    rejected: Iterable[pa.Table],
    storage: PartStorage,
    column_kinds: Mapping[str, Collection[str]],
) -> set[str]:
    """Columns of integers and floats with an integer that a double cannot hold."""
    numbers = mixed_numbers(column_kinds)
    return wide_integers(_all_inputs(parts, rejected, storage), numbers) if numbers else set()


@contextmanager
def _closed_or_aborted(writer: ResultWriter) -> Iterator[None]:
    try:
        yield
        writer.close()
    except BaseException:
        writer.abort()
        raise


def _all_inputs(
    parts: Sequence[Receipt], rejected: Iterable[pa.Table], storage: PartStorage
) -> Iterator[pa.Array]:
    yield from input_arrays(parts, storage)
    for table in rejected:
        yield from table.column(INPUT_COLUMN).cast(JSON_INPUT).chunks
