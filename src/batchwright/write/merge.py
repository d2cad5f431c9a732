"""Every row's newest outcome, in input order, from parts in any order and rejected rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchwright.core.errors import StorageError, VerifyError
from batchwright.core.records import Receipt
from batchwright.core.schemas import INPUT_COLUMN
from batchwright.write.ahead import PartStorage, ReadAhead
from batchwright.write.parts import Rows, name_rows

# Windows begin at multiples of this, counted in rows of the input: whatever the parts were, the
# writer sees the same tables and so writes the same bytes. Small, because rows can be large.
WINDOW_ROWS = 1024

# Column added while several generations are merged.
_GENERATION = "generation"

_SORT_MEMORY = "256MB"


def windows(
    parts: Sequence[Receipt],
    rejected: Iterable[pa.Table],
    storage: PartStorage,
    schema: pa.Schema,
    total_rows: int,
    scratch: Path,
) -> Iterator[pa.Table]:
    """All rows from 0 to `total_rows - 1`, in tables of WINDOW_ROWS rows (the last has fewer).

    Args:
        parts: receipts of all generations, in any order.
        rejected: tables with row, id, error_code, error and input, in order of rows.
        storage: where the parts are.
        schema: the part schema.
        total_rows: rows of the input.
        scratch: an empty folder for what does not fit in memory.

    Raises:
        VerifyError: a row has no result or more than one.
        StorageError: a part cannot be read, or the disk is full.
    """
    answered = _Cursor(_answered(parts, storage, schema, scratch))
    refused = _Cursor(_as_results(table, schema) for table in rejected)
    for first in range(0, total_rows, WINDOW_ROWS):
        stop = min(first + WINDOW_ROWS, total_rows)
        newest = _newest(answered.rows_below(stop), schema)
        yield _settle([*newest, *refused.rows_below(stop)], first, stop)
    beyond = np.concatenate([answered.next_rows(), refused.next_rows()])
    if len(beyond):
        msg = f"results for rows beyond the {total_rows} of the input: {name_rows(beyond)}"
        raise VerifyError(msg)


def input_arrays(parts: Sequence[Receipt], storage: PartStorage) -> Iterator[pa.Array]:
    """The column `input` of every part, in pieces, in no order of rows."""
    ahead = ReadAhead(storage, [part.file for part in parts])
    for part in parts:
        for batch in read_batches(ahead, part.file, [INPUT_COLUMN]):
            yield batch.column(0)


def read_batches(
    storage: PartStorage, file: str, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a part, a window's worth at a time. Raises StorageError."""
    path = storage.local_path(file)
    try:
        source = pa.BufferReader(storage.read(file)) if path is None else pa.OSFile(str(path))
        with source, pq.ParquetFile(source) as parquet:
            yield from parquet.iter_batches(WINDOW_ROWS, columns=columns, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"part {file} cannot be read: {error}") from error


def _answered(
    parts: Sequence[Receipt], storage: PartStorage, schema: pa.Schema, scratch: Path
) -> Iterator[pa.Table]:
    filled = sorted((part for part in parts if part.rows), key=lambda part: part.first_row)
    if _follow_each_other(filled):
        return _one_after_the_other(filled, storage, schema)
    if _survives_duckdb(schema.field(INPUT_COLUMN).type):
        return _sorted_on_disk(filled, storage, schema, scratch)
    return _sorted_in_memory(filled, storage, schema)


def _follow_each_other(parts: list[Receipt]) -> bool:
    one_generation = len({part.generation for part in parts}) <= 1
    return one_generation and all(
        left.last_row < right.first_row for left, right in itertools.pairwise(parts)
    )


def _one_after_the_other(
    parts: list[Receipt], storage: PartStorage, schema: pa.Schema
) -> Iterator[pa.Table]:
    ahead = ReadAhead(storage, [part.file for part in parts])
    for part in parts:
        for batch in read_batches(ahead, part.file):
            yield _conform(pa.Table.from_batches([batch]), schema)


def _sorted_on_disk(
    parts: list[Receipt], storage: PartStorage, schema: pa.Schema, scratch: Path
) -> Iterator[pa.Table]:
    """Rows by number and generation, through DuckDB's external sort."""
    import duckdb

    wanted = _with_generation(schema)
    # Threads would multiply the memory in use; one sorts faster than the writer writes.
    config: dict[str, Any] = {
        "memory_limit": _SORT_MEMORY,
        "temp_directory": str(scratch / "spill"),
        "threads": 1,
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
    }
    try:
        with duckdb.connect(config=config) as connection:
            relation = _all_generations(connection, _local_files(parts, storage, scratch))
            for batch in relation.order(f"row, {_GENERATION}").to_arrow_reader(WINDOW_ROWS):
                yield _conform(pa.Table.from_batches([batch]), wanted)
    except (duckdb.Error, OSError) as error:
        raise StorageError(f"cannot sort the parts in {scratch}: {error}") from error


def _all_generations(connection: Any, files: dict[int, list[str]]) -> Any:
    # A folder called `a=b` above the run directory must not become a column.
    relations = [
        connection.read_parquet(names, hive_partitioning=False).project(
            f"*, {generation}::INTEGER AS {_GENERATION}"
        )
        for generation, names in sorted(files.items())
    ]
    merged = relations[0]
    for relation in relations[1:]:
        merged = merged.union(relation)
    return merged


def _local_files(parts: list[Receipt], storage: PartStorage, scratch: Path) -> dict[int, list[str]]:
    """Names by generation, safe for DuckDB, which takes `*`, `?` and `[` as a pattern."""
    files: dict[int, list[str]] = {}
    ahead = ReadAhead(storage, [part.file for part in parts])
    for number, part in enumerate(parts):
        path = storage.local_path(part.file)
        if path is None:
            path = scratch / f"{number}.parquet"
            path.write_bytes(ahead.read(part.file))
        files.setdefault(part.generation, []).append(_without_pattern(str(path)))
    return files


def _without_pattern(path: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)


def _sorted_in_memory(
    parts: list[Receipt], storage: PartStorage, schema: pa.Schema
) -> Iterator[pa.Table]:
    """For the few types that DuckDB would change; takes the memory of all the results."""
    tables = []
    for part in parts:
        generation = pa.array(np.full(part.rows, part.generation, np.int32))
        table = pa.concat_tables(_one_after_the_other([part], storage, schema))
        tables.append(table.append_column(_GENERATION, generation))
    merged = pa.concat_tables(tables)
    keys = [merged.column("row").to_numpy(), merged.column(_GENERATION).to_numpy()]
    order = np.lexsort(keys[::-1])
    for first in range(0, len(order), WINDOW_ROWS):
        yield merged.take(order[first : first + WINDOW_ROWS])


def _survives_duckdb(kind: pa.DataType) -> bool:
    """False for what DuckDB reads as something else, or not at all."""
    if pa.types.is_decimal256(kind):
        return False
    children = [kind.field(i) for i in range(kind.num_fields)]
    names = {child.name.casefold() for child in children}
    distinct = not pa.types.is_struct(kind) or (len(names) == len(children) and "" not in names)
    return distinct and all(_survives_duckdb(child.type) for child in children)


def _with_generation(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(_GENERATION, pa.int32()))


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with these columns; those that parts lack (of format 1; `line`) are null."""
    if table.schema.equals(schema):
        return table
    for field in schema:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table.select(schema.names).cast(schema)


def _as_results(rejected: pa.Table, schema: pa.Schema) -> pa.Table:
    given = {
        **{name: rejected.column(name) for name in rejected.column_names},
        "status": pa.array(["rejected"] * rejected.num_rows),
    }
    columns = [
        given[field.name].cast(field.type)
        if field.name in given
        else pa.nulls(rejected.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _newest(tables: list[pa.Table], schema: pa.Schema) -> list[pa.Table]:
    """Drop every outcome that a later generation replaced."""
    if not tables or _GENERATION not in tables[0].schema.names:
        return tables
    table = pa.concat_tables(tables)
    rows = table.column("row").to_numpy()
    generations = table.column(_GENERATION).to_numpy()
    last = np.append(rows[1:] != rows[:-1], True)
    # Two outcomes of one generation are both kept here: the caller reports them.
    twice = np.append((rows[1:] == rows[:-1]) & (generations[1:] == generations[:-1]), False)
    kept = table if (last | twice).all() else table.filter(pa.array(last | twice))
    return [kept.select(schema.names)]


def _settle(tables: list[pa.Table], first: int, stop: int) -> pa.Table:
    """One table with exactly the rows from `first` to `stop - 1`, in order."""
    rows = np.concatenate([_EMPTY, *(table.column("row").to_numpy() for table in tables)])
    order = np.argsort(rows, kind="stable")
    if not np.array_equal(rows[order], np.arange(first, stop)):
        raise VerifyError(_what_is_wrong(rows, first, stop))
    table = pa.concat_tables(tables)
    in_order = bool((order[1:] > order[:-1]).all())
    return (table if in_order else table.take(order)).combine_chunks()


def _what_is_wrong(rows: Rows, first: int, stop: int) -> str:
    present, counts = np.unique(rows, return_counts=True)
    faults = {
        "without a result": np.setdiff1d(np.arange(first, stop), present),
        "with more than one result": present[counts > 1],
        "that are not of the input": present[(present < first) | (present >= stop)],
    }
    return "; ".join(
        f"rows {what}: {name_rows(which)}" for what, which in faults.items() if len(which)
    )


_EMPTY: Rows = np.empty(0, np.int64)


class _Cursor:
    """Takes a stream of tables, sorted by row, apart at given row numbers."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self._tables = iter(tables)
        self._table: Any = None
        self._rows = _EMPTY
        self._last = np.iinfo(np.int64).min

    def rows_below(self, limit: int) -> list[pa.Table]:
        """The rows not yet taken whose number is smaller than `limit`."""
        taken = []
        while self._refill():
            table = self._table
            cut = int(np.searchsorted(self._rows, limit))
            if cut:
                taken.append(table.slice(0, cut))
            self._table, self._rows = table.slice(cut), self._rows[cut:]
            if len(self._rows):
                break
        return taken

    def next_rows(self) -> Rows:
        """Numbers of some rows not yet taken; empty at the end."""
        self._refill()
        return self._rows

    def _refill(self) -> bool:
        while not len(self._rows):
            table = next(self._tables, None)
            if table is None:
                return False
            rows = pc.cast(table.column("row"), pa.int64()).to_numpy()
            if len(rows) and (rows[0] < self._last or (rows[1:] < rows[:-1]).any()):
                raise VerifyError(f"rows are not in order: {name_rows(rows)}")
            self._table, self._rows = table, rows
            self._last = rows[-1] if len(rows) else self._last
        return True
