"""Parquet results in folders named `column=value`, as Hive has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from batchwright.core.errors import JobError
from batchwright.write.parquet_files import ParquetTables
from batchwright.write.results import ResultShape

_NULL = "__HIVE_DEFAULT_PARTITION__"

# Each has a file open and rows in hand.
PARTITIONS_MAX = 500
_IN_HAND_BYTES = 256 * 2**20

_KINDS = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_boolean,
    pa.types.is_date,
)  # fmt: skip


class PartitionedWriter:
    """Rows to the folder of their values; the columns that name folders are not in the files."""

    def __init__(
        self,
        shape: ResultShape,
        by: Sequence[str],
        tables_of: Callable[[pa.Schema, str], ParquetTables],
    ) -> None:
        check_partitions(shape.schema, by)
        self.schema = _without(shape.schema, by)
        self._shape = shape
        self._by = list(by)
        self._tables_of = tables_of
        self._folders: dict[str, ParquetTables] = {}

    def add(self, part: pa.Table) -> None:
        """Write the next rows."""
        table = self._shape.to_table(part)
        for folder, rows in self._split(table):
            self._tables(folder).add(rows)
        # Many folders must not mean much memory: the largest go to the disk early.
        while sum(one.group_bytes for one in self._folders.values()) > _IN_HAND_BYTES:
            max(self._folders.values(), key=lambda one: one.group_bytes).write_group()

    def close(self) -> None:
        """Finish the last files; without rows, one file without a folder says what there is."""
        if not self._folders:
            self._tables("")
        for tables in self._folders.values():
            tables.close()

    def _tables(self, folder: str) -> ParquetTables:
        if folder not in self._folders:
            if len(self._folders) == PARTITIONS_MAX:
                names = ", ".join(self._by)
                raise JobError(
                    f"output.partition_by: {names} has more than {PARTITIONS_MAX} values",
                    "Every value becomes a folder with a file. Choose a column with fewer values.",
                )
            self._folders[folder] = self._tables_of(self.schema, folder)
        return self._folders[folder]

    def _split(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        values = [table.column(name).to_pylist() for name in self._by]
        rest = table.select(self.schema.names)
        places: dict[tuple[Any, ...], list[int]] = {}
        for place, key in enumerate(zip(*values, strict=True)):
            places.setdefault(key, []).append(place)
        for key, indices in places.items():
            folder = "/".join(map(_folder, self._by, key))
            yield folder, rest.take(np.array(indices)).replace_schema_metadata(self.schema.metadata)


def check_partitions(schema: pa.Schema, by: Sequence[str]) -> None:
    """Raises JobError for a column that cannot name folders."""
    for name in by:
        if name not in schema.names:
            raise JobError(
                f"output.partition_by: the results have no column {name!r}",
                f"They have {', '.join(schema.names)}.",
            )
        kind = schema.field(name).type
        if not any(test(kind) for test in _KINDS):
            raise JobError(
                f"output.partition_by: {name!r} is {kind}",
                "Text, integers, booleans and dates can name folders.",
            )
    if set(by) >= set(schema.names):
        raise JobError("output.partition_by names every column: nothing is left for the files")


def _without(schema: pa.Schema, by: Sequence[str]) -> pa.Schema:
    fields = [field for field in schema if field.name not in by]
    return pa.schema(fields, metadata=schema.metadata)


def _folder(name: str, value: Any) -> str:
    # An empty text and a missing one would be one folder to Hive; readers give null for both.
    shown = _NULL if value is None or value == "" else quote(_text(value), safe=" ")
    return f"{quote(name, safe=' ')}={shown}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
