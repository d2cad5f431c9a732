"""The rejected rows of a run, as the prepared parts and the order know them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batchwright.core.records import Duplicate, OrderBatch, OrderedPart
from batchwright.rundir.manifest import read_manifest
from batchwright.rundir.prepared import ordered_receipts, paths_of, read_columns
from batchwright.rundir.storage import Storage


class RejectedRows:
    """The rejected rows of a run as tables in input order; may be gone through many times."""

    def __init__(self, storage: Storage, batches: Sequence[OrderBatch]) -> None:
        self._storage = storage
        self._batches = list(batches)

    def __iter__(self) -> Iterator[pa.Table]:
        for table, _ in rejected_tables(self._storage, self._batches):
            yield table

    def numbers(self) -> npt.NDArray[np.int64]:
        """Row numbers, ascending."""
        found = [np.asarray(table.column("row").to_numpy()) for table in self]
        numbers: npt.NDArray[np.int64] = np.concatenate([np.empty(0, np.int64), *found])
        return numbers.astype(np.int64)


def rejected_tables(
    storage: Storage, batches: Sequence[OrderBatch]
) -> Iterator[tuple[pa.Table, list[str]]]:
    """The rejected rows of each prepared part that has some, in input order.

    Yields:
        Table with columns row, id, error_code, error, line, input; and the file of each row.
    """
    manifest = read_manifest(storage)
    numbered = not manifest.id_column
    for batch in batches:
        repeated: dict[str, list[Duplicate]] = {}
        for duplicate in batch.duplicates:
            repeated.setdefault(duplicate.file, []).append(duplicate)
        for part in batch.parts:
            duplicates = repeated.get(part.file, [])
            if part.rejected or duplicates:
                table = _rejected_of(storage, part, duplicates)
                rows = table.column("row").to_numpy()
                paths = paths_of(storage, part, manifest.splits, rows - part.first_row)
                yield _with_row_ids(table) if numbered else table, paths


def _rejected_of(storage: Storage, part: OrderedPart, duplicates: list[Duplicate]) -> pa.Table:
    names = ["id", "error_code", "error", "line", "input"]
    table = read_columns(storage, part.file, names).slice(0, part.rows)
    found = set(np.flatnonzero(table.column("error_code").is_valid().to_numpy()).tolist())
    message = {item.index: f"the id was first used by row {item.of_row}" for item in duplicates}
    indexes = sorted(found | set(message))
    table = table.take(pa.array(indexes, pa.int64()))
    codes = table.column("error_code").to_pylist()
    errors = table.column("error").to_pylist()
    for place, index in enumerate(indexes):
        if index in message:
            codes[place], errors[place] = "duplicate_id", message[index]
    lines = np.asarray(table.column("line").to_numpy()) + part.first_line
    rows = np.asarray(indexes, dtype=np.int64) + part.first_row
    return pa.table(
        {
            "row": rows,
            "id": table.column("id"),
            "error_code": pa.array(codes, pa.string()),
            "error": pa.array(errors, pa.large_string()),
            "line": lines,
            "input": table.column("input"),
        }
    )


def _with_row_ids(table: pa.Table) -> pa.Table:
    """Rows without an id of their own are known by their number."""
    ids = table.column("row").cast(pa.large_string())
    return table.set_column(table.schema.get_field_index("id"), "id", ids)


def column_kinds(storage: Storage, batches: Sequence[OrderBatch]) -> dict[str, set[str]]:
    """The kinds of JSON values seen in each input column, columns in order of appearance."""
    kinds: dict[str, set[str]] = {}
    parts = [part for batch in batches for part in batch.parts]
    for receipt in ordered_receipts(storage, parts):
        for name, found in receipt.column_kinds.items():
            kinds.setdefault(name, set()).update(found)
    return kinds
