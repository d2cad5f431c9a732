"""Every row's newest outcome, from parts in any order and rejected rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from batchwright.core.errors import VerifyError
from batchwright.core.records import Receipt
from batchwright.write.ahead import PartStorage, ReadAhead
from batchwright.write.part_streams import (
    BATCH_ROWS,
    GENERATION,
    conform,
    part_streams,
    read_batches,
)
from batchwright.write.parts import Rows, name_rows
from batchwright.write.row_set import RowSet
from batchwright.write.sorted_runs import RunReader

# Windows begin at multiples of this, counted in rows of the input: whatever the parts were, the
# writer sees the same tables and so writes the same bytes. Small, because rows can be large.
WINDOW_ROWS = BATCH_ROWS

_EMPTY: Rows = np.empty(0, np.int64)

# Of rejected rows: nothing may replace them, so a second result of theirs is a fault.
_NO_PASS = -1


def windows(
    parts: Sequence[Receipt],
    rejected: Iterable[pa.Table],
    storage: PartStorage,
    schema: pa.Schema,
    total_rows: int,
    scratch: Path,
    *,
    complete: bool = True,
) -> Iterator[pa.Table]:
    """The rows from 0 to `total_rows - 1` in order, in tables of WINDOW_ROWS rows at most.

    Args:
        parts: receipts of all generations, in any order.
        rejected: tables with row, id, error_code, error and input, in order of rows.
        storage: where the parts are.
        schema: the part schema.
        total_rows: rows of the input.
        scratch: an empty folder for what does not fit in memory.
        complete: every row has to be there; else those that are there are given.

    Raises:
        VerifyError: a row has no result or more than one.
        StorageError: a part cannot be read, or the disk is full.
    """
    answered = part_streams(parts, storage, schema, scratch)
    refused = _refused(rejected, schema)
    readers = [_in_order(stream) for stream in (*answered, refused)]
    for first in range(0, total_rows, WINDOW_ROWS):
        stop = min(first + WINDOW_ROWS, total_rows)
        tables = [table for reader in readers for table in reader.rows_below(stop)]
        if tables or complete:
            yield _settle(tables, first, stop, schema, complete=complete)
    beyond = np.concatenate([_EMPTY, *(one.keys for one in readers if one.refill())])
    if len(beyond):
        msg = f"results for rows beyond the {total_rows} of the input: {name_rows(beyond)}"
        raise VerifyError(msg)


def as_they_are(
    parts: Sequence[Receipt],
    rejected: Iterable[pa.Table],
    storage: PartStorage,
    schema: pa.Schema,
    total_rows: int,
    *,
    complete: bool = True,
) -> Iterator[pa.Table]:
    """The same rows in the order in which they lie in the parts: nothing is sorted.

    The newest pass comes first, so that a row that was seen is one that was replaced.

    Raises:
        VerifyError: as `windows`, but a row that one pass has twice is named when it is met.
        StorageError: a part cannot be read.
    """
    newer, seen = RowSet(total_rows), RowSet(total_rows)
    generation = None
    ordered = sorted(parts, key=lambda one: (-one.generation, one.chunk, one.sequence))
    ahead = ReadAhead(storage, [part.file for part in ordered])
    for part in ordered:
        if part.generation != generation:
            generation = part.generation
            newer.add_all(seen)
        for batch in read_batches(ahead, part.file, schema.names):
            table = conform(pa.Table.from_batches([batch]), schema)
            rows = _numbers(table)
            fresh = ~newer.has(_known(rows, total_rows))
            table = table if fresh.all() else table.filter(pa.array(fresh))
            _note(seen, rows[fresh])
            if table.num_rows:
                yield table
    for table in rejected:
        _note(seen, _known(_numbers(table), total_rows))
        yield _as_results(table, schema)
    if complete and seen.count() != total_rows:
        missing = seen.first_absent(total_rows, 10)
        raise VerifyError(f"rows without a result: {name_rows(missing)}")


def _note(seen: RowSet, rows: Rows) -> None:
    twice = rows[seen.has(rows)]
    if len(twice):
        raise VerifyError(f"rows with more than one result: {name_rows(twice)}")
    seen.add(rows)


def _known(rows: Rows, total_rows: int) -> Rows:
    beyond = rows[(rows < 0) | (rows >= total_rows)]
    if len(beyond):
        msg = f"results for rows beyond the {total_rows} of the input: {name_rows(beyond)}"
        raise VerifyError(msg)
    return rows


def _numbers(table: pa.Table) -> Rows:
    rows: Rows = table.column("row").to_numpy()
    return rows


def _in_order(tables: Iterable[pa.Table]) -> RunReader:
    return RunReader(_checked(tables), "row")


def _checked(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    last = np.iinfo(np.int64).min
    for table in tables:
        rows = _numbers(table)
        if len(rows):
            if rows[0] < last or (rows[1:] < rows[:-1]).any():
                raise VerifyError(f"rows are not in order: {name_rows(rows)}")
            last = rows[-1]
            yield table


def _refused(rejected: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    field = pa.field(GENERATION, pa.int32())
    for table in rejected:
        generation = pa.array(np.full(table.num_rows, _NO_PASS, np.int32))
        yield _as_results(table, schema).append_column(field, generation)


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


def _settle(
    tables: list[pa.Table], first: int, stop: int, schema: pa.Schema, *, complete: bool
) -> pa.Table:
    """One table with the newest outcome of the rows from `first` to `stop - 1`, in order."""
    rows = np.concatenate([_EMPTY, *(_numbers(table) for table in tables)])
    generations = [table.column(GENERATION).to_numpy() for table in tables]
    passes = np.concatenate([_EMPTY, *generations])
    order = np.lexsort((passes, rows))
    kept = order[_newest(rows[order], passes[order])]
    settled = rows[kept]
    whole = np.arange(first, stop) if complete else np.unique(settled)
    if not np.array_equal(settled, whole):
        raise VerifyError(_what_is_wrong(settled, first, stop, complete=complete))
    table = pa.concat_tables(tables).select(schema.names)
    as_it_is = len(kept) == len(rows) and bool((kept[1:] > kept[:-1]).all())
    return (table if as_it_is else table.combine_chunks().take(kept)).combine_chunks()


def _newest(rows: Rows, passes: Rows) -> Rows:
    """Places of the outcomes that no later pass replaced, by sorted rows.

    Two outcomes of one pass are both kept: the caller reports them.
    """
    if len(rows) < 2:
        return np.arange(len(rows))
    same_row = rows[1:] == rows[:-1]
    later = (passes[1:] != passes[:-1]) & (passes[:-1] != _NO_PASS)
    replaced = np.append(same_row & later, False)
    return np.flatnonzero(~replaced)


def _what_is_wrong(rows: Rows, first: int, stop: int, *, complete: bool) -> str:
    present, counts = np.unique(rows, return_counts=True)
    missing = np.setdiff1d(np.arange(first, stop), present) if complete else _EMPTY
    faults = {
        "without a result": missing,
        "with more than one result": present[counts > 1],
        "that are not of the input": present[(present < first) | (present >= stop)],
    }
    return "; ".join(
        f"rows {what}: {name_rows(which)}" for what, which in faults.items() if len(which)
    )
