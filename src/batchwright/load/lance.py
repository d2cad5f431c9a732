"""LanceDB: a table in a folder, read by LanceDB and everything that reads Lance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from batchwright.core.errors import JobError, MissingExtra, StoreError, Unreachable
from batchwright.core.ports import Fitted
from batchwright.core.stores import EMBEDDING, ID, StoreLimits, StoreShape, StoreTarget
from batchwright.load.rows import NUMERIC_ID, dimensions, payload_bytes

# Each write is a version with a file of its own; these are put together now and then.
_WRITES_BEFORE_TIDYING = 64

# A search of fewer vectors is exact and takes milliseconds without an index.
_WORTH_AN_INDEX = 100_000


class LanceStore:
    """A table in LanceDB. One write at a time: each is a version of the table."""

    limits = StoreLimits(batch_bytes=16 << 20, row_bytes=1 << 30, batch_rows=100_000, parallel=1)

    def __init__(self, target: StoreTarget) -> None:
        self._target = target
        self._lancedb = _load_client()
        self._table: Any = None
        self._shape: StoreShape | None = None
        self._writes = 0

    def open(self, shape: StoreShape, *, create: bool) -> bool:
        """Look at the table; a new one gets its columns with the first rows."""
        self._shape = shape
        with self._translated():
            if create:
                Path(self._target.place).mkdir(parents=True, exist_ok=True)
            there = (Path(self._target.place) / f"{self._target.table}.lance").is_dir()
            if there:
                database = self._lancedb.connect(self._target.place)
                self._table = database.open_table(self._target.table)
                self._refuse_mismatch(shape, self._table.schema)
        return there

    def identities(self, ids: Sequence[str]) -> list[str]:
        """Ids are stored as they are."""
        return list(ids)

    def fit(self, rows: pa.Table) -> Fitted:
        """Columns keep the types of the results."""
        return Fitted(rows, [], {})

    def sizes(self, rows: pa.Table) -> Any:
        """As Arrow holds them."""
        return payload_bytes(rows) + 4 * dimensions(rows)

    def write(self, rows: pa.Table) -> None:
        """Merge rows by id in one version."""
        stored = rows.drop_columns(["row", NUMERIC_ID])
        with self._translated():
            if self._table is None:
                database = self._lancedb.connect(self._target.place)
                self._table = database.create_table(
                    self._target.table, schema=_plain(stored.schema), exist_ok=True
                )
            stored = stored.select(self._table.schema.names).cast(self._table.schema)
            merge = self._table.merge_insert(ID).when_matched_update_all()
            merge.when_not_matched_insert_all().execute(stored)
            self._writes += 1
            if self._writes % _WRITES_BEFORE_TIDYING == 0:
                self._tidy()

    def finish(self) -> list[str]:
        """Put files together, and index ids and vectors where that pays."""
        if self._table is None:
            return []
        assert self._shape is not None, "opened before"
        with self._translated():
            self._tidy()
            large = self._table.count_rows() >= _WORTH_AN_INDEX
            indexed = any(EMBEDDING in one.columns for one in self._table.list_indices())
            if not (large and self._shape.index) or indexed:
                return []
            from lancedb.index import IvfHnswSq

            config = IvfHnswSq(distance_type=self._shape.metric)
            self._table.create_index(EMBEDDING, config=config)
        return ["built the index (ivf_hnsw_sq)"]

    def count(self) -> int:
        """Rows in the table."""
        if self._table is None:
            return 0
        with self._translated():
            return int(self._table.count_rows())

    def close(self) -> None:
        """Nothing is held open."""
        self._table = None

    def _tidy(self) -> None:
        """Few files and an index of ids: without it each merge would read the whole column."""
        from lancedb.index import BTree

        if not any(one.columns == [ID] for one in self._table.list_indices()):
            self._table.create_index(ID, config=BTree())
        self._table.optimize(cleanup_older_than=timedelta(hours=1))

    def _refuse_mismatch(self, shape: StoreShape, schema: pa.Schema) -> None:
        name = f"table {self._target.table} in {self._target.place}"
        another = "Load into another table, which is made if it does not exist."
        vector = schema.field(EMBEDDING).type if EMBEDDING in schema.names else None
        if vector is None or not pa.types.is_fixed_size_list(vector):
            raise JobError(f"{name} has no column {EMBEDDING} of vectors", another)
        if vector.list_size != shape.dimensions:
            raise JobError(
                f"{name} has vectors of {vector.list_size} dimensions, the run makes {shape.dimensions}",
                another,
            )
        if shape.columns is None:
            return
        wanted = {ID, EMBEDDING, *(column.name for column in shape.columns)}
        if wanted != set(schema.names):
            odd = ", ".join(sorted(wanted.symmetric_difference(schema.names)))
            raise JobError(
                f"{name} has other columns than the load; not in both: {odd}",
                f"Choose columns: --columns. {another}",
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, ValueError, KeyError) as error:
            first = str(error).splitlines()[0]
            raise StoreError(
                f"LanceDB, {self._target.place}, table {self._target.table}: {first}"
            ) from error
        except (RuntimeError, OSError) as error:
            first = str(error).splitlines()[0]
            if "conflict" in first.lower():
                raise Unreachable(first) from error
            hint = "Mend that, then load again: it goes on where it stopped."
            raise StoreError(f"LanceDB, {self._target.place}: {first}", hint) from error


def _plain(schema: pa.Schema) -> pa.Schema:
    """The schema without what is said of the results; ids as the index of ids wants them."""
    fields = [field.with_nullable(field.name != ID) for field in schema]
    fields = [field.with_type(pa.string()) if field.name == ID else field for field in fields]
    return pa.schema([field.remove_metadata() for field in fields])


def _load_client() -> Any:
    try:
        import lancedb
    except ImportError as error:
        raise MissingExtra(
            f"lance:// needs lancedb ({error})", "pip install 'batchwright[lancedb]'"
        ) from None
    return lancedb
