"""Committed parts to results: one format, one size, each row once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from batchwright.config.job import ResultFormat
from batchwright.core.records import Receipt
from batchwright.core.schemas import INPUT_COLUMN, JSON_INPUT, part_schema
from batchwright.core.tasks import GENERATE, TaskSettings
from batchwright.rundir.locations import Location
from batchwright.write.ahead import PartStorage
from batchwright.write.csv_rows import CsvRows
from batchwright.write.files import ResultFiles, ResultWriter
from batchwright.write.folder import ResultStore
from batchwright.write.json_input import mixed_numbers, wide_integers
from batchwright.write.line_files import SUFFIXES, LineWriter
from batchwright.write.merge import as_they_are, windows
from batchwright.write.openai_batch import LINE, BatchWriter
from batchwright.write.parquet_files import ParquetTables, ParquetWriter, schema_only
from batchwright.write.part_streams import input_arrays
from batchwright.write.partitions import PartitionedWriter
from batchwright.write.response_bodies import Responses
from batchwright.write.results import Columns, ResultShape, make_shape

# Rows written so far.
Say = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Committed:
    """Everything that a run has committed, and what is needed to show it.

    Attributes:
        parts: receipts of all generations, in any order; the newest outcome of a row wins.
        rejected: tables with row, id, error_code, error and input, in order of rows; gone through
            more than once.
        storage: where the parts are.
        input_type: type of the column `input` of the parts.
        column_kinds: JSON kinds seen in each column over the whole data, in order of appearance.
        total_rows: rows of the input.
        task: which says what the results have in the place of a text.
        complete: whether every row has to have a result; else those that have one are shown.
    """

    parts: Sequence[Receipt]
    rejected: Iterable[pa.Table]
    storage: PartStorage
    input_type: pa.DataType
    column_kinds: Mapping[str, Collection[str]]
    total_rows: int
    task: TaskSettings = GENERATE
    complete: bool = True

    def shape(self, columns: Columns, *, typed: bool = True) -> ResultShape:
        """The shape of the results.

        Args:
            columns: the input's own columns to keep.
            typed: whether the results are Arrow tables, and not JSON. It may take a pass over all
                inputs to find out what type suits numbers.
        """
        wide = self._wide() if typed and self.input_type == JSON_INPUT else set()
        return make_shape(self.input_type, self.column_kinds, wide, columns, self.task)

    def rows(
        self, schema: pa.Schema, scratch: Path, *, in_order: bool = True
    ) -> Iterator[pa.Table]:
        """The rows, with the columns of a part. Raises VerifyError and StorageError."""
        if in_order:
            return windows(
                self.parts, self.rejected, self.storage, schema, self.total_rows, scratch,
                complete=self.complete,
            )  # fmt: skip
        return as_they_are(
            self.parts, self.rejected, self.storage, schema, self.total_rows,
            complete=self.complete,
        )  # fmt: skip

    @property
    def schema(self) -> pa.Schema:
        """Of the parts."""
        return part_schema(self.input_type, self.task)

    def _wide(self) -> set[str]:
        """Columns of integers and floats with an integer that a double cannot hold."""
        numbers = mixed_numbers(self.column_kinds)
        return wide_integers(self._inputs(), numbers) if numbers else set()

    def _inputs(self) -> Iterator[pa.Array]:
        yield from input_arrays(self.parts, self.storage)
        for table in self.rejected:
            yield from table.column(INPUT_COLUMN).cast(JSON_INPUT).chunks


@dataclass(frozen=True, slots=True)
class FileOptions:
    """What the files are like.

    Attributes:
        format: `openai-batch` and `vllm-batch` need `responses`.
        columns: the input's own columns to keep; response objects have none.
        target_file_bytes: a file is closed once it has this size.
        compression: by name, one that the format has.
        row_group_mb: content of a row group of Parquet.
        in_order: rows in input order; else as they lie in the parts.
        partition_by: columns of the results whose values name folders.
        responses: what all response objects have in common.
    """

    format: ResultFormat = "parquet"
    columns: Columns = "all"
    target_file_bytes: int = 256 << 20
    compression: str = "zstd"
    row_group_mb: int = 32
    in_order: bool = True
    partition_by: tuple[str, ...] = ()
    responses: Responses | None = None


@dataclass(frozen=True, slots=True)
class _Plan:
    """Who writes the files, from rows of which schema; `success` is the content of `_SUCCESS`."""

    writer: ResultWriter
    schema: pa.Schema
    success: bytes = b""


def export_files(
    committed: Committed, store: ResultStore, options: FileOptions, say: Say | None = None
) -> list[Location]:
    """Write every row exactly once, and return the files.

    In input order, equal rows give equal bytes, whatever the chunks, the parts and the order of
    commits were.

    Args:
        committed: the rows.
        store: where the files go.
        options: what they are like.
        say: told how many rows are written.

    Raises:
        VerifyError: a row has no result or more than one.
        StorageError, JobError: a file cannot be read or written; the options do not fit.
    """
    counts: Counter[str] = Counter()
    files = ResultFiles(store, _suffix(options))
    with _aborted_on_error(files):
        plan = _plan(committed, files, options)
        with store.scratch() as scratch:
            written = 0
            for table in committed.rows(plan.schema, scratch, in_order=options.in_order):
                plan.writer.add(table)
                counts.update(_statuses(table))
                written += table.num_rows
                if say is not None:
                    say(written)
        plan.writer.close()
        about = {
            "format": options.format,
            "compression": options.compression or "none",
            "order": "input" if options.in_order else "any",
            "partition_by": list(options.partition_by),
            **{status: counts[status] for status in ("ok", "failed", "rejected")},
        }
        return files.publish(about, plan.success)


def _suffix(options: FileOptions) -> str:
    if options.format == "parquet":
        return ".parquet"
    if options.responses is not None:
        return ".jsonl"
    return f".{options.format}{SUFFIXES[options.compression]}"


def _plan(committed: Committed, files: ResultFiles, options: FileOptions) -> _Plan:
    schema = committed.schema
    if options.responses is not None:
        writer = BatchWriter(files, options.responses, committed.task)
        return _Plan(writer, schema.append(LINE))
    shape = committed.shape(options.columns, typed=options.format != "jsonl")
    if options.format == "parquet":
        return _parquet(shape, schema, files, options)
    rows = CsvRows(shape) if options.format == "csv" else None
    lines = LineWriter(
        files,
        rows.to_lines if rows else shape.to_lines,
        target_bytes=options.target_file_bytes,
        header=rows.header if rows else b"",
        compression=options.compression,
    )
    return _Plan(lines, schema)


def _parquet(
    shape: ResultShape, schema: pa.Schema, files: ResultFiles, options: FileOptions
) -> _Plan:
    def tables(schema: pa.Schema, folder: str) -> ParquetTables:
        return ParquetTables(
            files,
            schema,
            target_bytes=options.target_file_bytes,
            row_group_mb=options.row_group_mb,
            compression=options.compression,
            folder=folder,
        )

    if options.partition_by:
        parted = PartitionedWriter(shape, options.partition_by, tables)
        return _Plan(parted, schema, schema_only(parted.schema))
    writer = ParquetWriter(shape, tables(shape.schema, ""))
    return _Plan(writer, schema, schema_only(shape.schema))


def _statuses(table: pa.Table) -> dict[str, int]:
    counted = pc.value_counts(table.column("status")).to_pylist()
    return {one["values"]: one["counts"] for one in counted}


@contextmanager
def _aborted_on_error(files: ResultFiles) -> Iterator[None]:
    try:
        yield
    except BaseException:
        files.abort()
        raise
