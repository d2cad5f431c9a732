"""Parquet results: row groups cut by content, files by size, folders by the values of columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchwright.write.files import ResultFile, ResultFiles
from batchwright.write.results import ResultShape
from batchwright.write.vectors import result_encoding

# At the usual 32 MB of a row group, it has 65,536 rows at most.
_ROWS_PER_MB = 2048

_LEVELS = {"zstd": 1, "gzip": 6}
_NAMES = {"none": "NONE"}


class ParquetTables:
    """Files of one folder, of tables of one schema.

    Row groups are cut by row number and content only, never by memory layout: equal rows give
    equal bytes.
    """

    def __init__(
        self,
        files: ResultFiles,
        schema: pa.Schema,
        *,
        target_bytes: int,
        row_group_mb: int = 32,
        compression: str = "zstd",
        folder: str = "",
    ) -> None:
        self.group_bytes = 0
        self._files = files
        self._schema = schema
        self._target_bytes = target_bytes
        self._group_bytes_max = min(row_group_mb << 20, target_bytes)
        self._group_rows_max = row_group_mb * _ROWS_PER_MB
        self._compression = compression
        self._folder = folder
        self._group: list[pa.Table] = []
        self._group_rows = 0
        self._started = False
        self._file: ResultFile | None = None
        self._parquet: Any = None

    def add(self, table: pa.Table) -> None:
        """Take the next rows."""
        self._group.append(table)
        self._group_rows += table.num_rows
        self.group_bytes += sum(content_bytes(column) for column in table.columns)
        if self._group_rows >= self._group_rows_max or self.group_bytes >= self._group_bytes_max:
            self.write_group()

    def close(self) -> None:
        """Finish the last file; there is always at least one."""
        if self._group or not self._started:
            self.write_group()
        self._finish()

    def write_group(self) -> None:
        """Write the rows in hand as a row group."""
        # One chunk per column, because page borders follow chunk borders.
        tables = self._group or [self._schema.empty_table()]
        table = pa.concat_tables(tables).combine_chunks()
        self._group, self._group_rows, self.group_bytes = [], 0, 0
        if self._file is None:
            self._started = True
            self._file = self._files.open(folder=self._folder)
            self._parquet = parquet_writer(self._file, self._schema, self._compression)
        self._parquet.write_table(table, row_group_size=max(table.num_rows, 1))
        self._file.rows += table.num_rows
        if self._file.tell() >= self._target_bytes:
            self._finish()

    def _finish(self) -> None:
        if self._file is None:
            return
        self._parquet.close()
        self._files.finish(self._file)
        self._file = self._parquet = None


def parquet_writer(sink: Any, schema: pa.Schema, compression: str) -> pq.ParquetWriter:
    """Writes row groups as results have them."""
    return pq.ParquetWriter(
        sink,
        schema,
        compression=_NAMES.get(compression, compression),
        compression_level=_LEVELS.get(compression),
        **result_encoding(schema),
    )


class ParquetWriter:
    """Rows in the shape of results to Parquet files."""

    def __init__(self, shape: ResultShape, tables: ParquetTables) -> None:
        self._shape = shape
        self._tables = tables

    def add(self, part: pa.Table) -> None:
        """Take the next rows."""
        self._tables.add(self._shape.to_table(part))

    def close(self) -> None:
        """Finish the last file."""
        self._tables.close()


def schema_only(schema: pa.Schema) -> bytes:
    """A Parquet file without row groups.

    It is what `_SUCCESS` holds among Parquet files: `load_dataset("parquet", data_dir=…)` of
    Hugging Face opens every file of a folder, and an empty one would end it with an error.
    """
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    return bytes(sink.getvalue().to_pybytes())


def content_bytes(column: Any) -> int:
    """Bytes of the values themselves: the same for equal columns, however they lie in memory."""
    kind = column.type
    if column.null_count == len(column) and not pa.types.is_struct(kind):
        return _bytes_of_nulls(kind) * len(column)
    if pa.types.is_struct(kind):
        return sum(content_bytes(child) for child in column.flatten())
    if pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type):
        return len(column) * int(kind.list_size * kind.value_type.bit_width // 8)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return 4 * len(column) + content_bytes(pc.list_flatten(column))
    if _has_length(kind):
        return 4 * len(column) + (pc.sum(pc.binary_length(column)).as_py() or 0)
    return 8 * len(column)


def _bytes_of_nulls(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type):
        return int(kind.list_size * kind.value_type.bit_width // 8)
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return 4 if lists or _has_length(kind) else 8


def _has_length(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string)
    return any(test(kind) for test in (*tests, pa.types.is_binary, pa.types.is_large_binary))
