"""Results as CSV: a header, quoted text, JSON where a cell holds more than one value."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from batchwright.write.answers import json_answers
from batchwright.write.json_input import dump_each
from batchwright.write.parquet_input import to_json_values
from batchwright.write.results import ResultShape


class CsvRows:
    """Rows of parts to CSV (RFC 4180, but LF at the end of lines).

    A missing value is nothing, an empty text is `""`: readers that look can tell them apart.
    """

    def __init__(self, shape: ResultShape) -> None:
        self._shape = shape
        schema = shape.schema
        self._schema = pa.schema([pa.field(one.name, _cell_type(one.type)) for one in schema])
        self.header = _encode(self._schema.empty_table(), header=True)

    def to_lines(self, part: pa.Table) -> bytes:
        """The rows."""
        table = self._shape.to_table(part)
        shown = json_answers(part)
        columns = [
            _as_json(shown[name]) if name in shown and _is_nested(column.type) else _cells(column)
            for name, column in zip(table.column_names, table.columns, strict=True)
        ]
        return _encode(pa.table(columns, schema=self._schema), header=False)


def _encode(table: pa.Table, *, header: bool) -> bytes:
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink, csv.WriteOptions(include_header=header, batch_size=2**16))
    return bytes(sink.getvalue().to_pybytes())


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind))


def _is_text_or_number(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_boolean,
        pa.types.is_float32, pa.types.is_float64,
    )  # fmt: skip
    return any(test(kind) for test in tests)


def _cell_type(kind: pa.DataType) -> pa.DataType:
    return kind if _is_text_or_number(kind) else pa.large_string()


def _cells(column: pa.ChunkedArray) -> Any:
    """What CSV has no form for becomes text: nested values JSON, all else as in JSON lines."""
    kind = column.type
    if _is_text_or_number(kind):
        return column
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.large_string())
    if pa.types.is_float16(kind):
        return pc.cast(pc.cast(column, pa.float32()), pa.large_string())
    values = to_json_values(column.combine_chunks())
    if _is_nested(kind):
        return _as_json(values)
    return pa.array(values).cast(pa.large_string())


def _as_json(values: list[Any]) -> pa.Array:
    texts = dump_each(values)
    rows = zip(values, texts, strict=True)
    found = [None if value is None else text for value, text in rows]
    return pa.array(found, pa.large_binary()).cast(pa.large_string())
