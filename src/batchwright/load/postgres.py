"""PostgreSQL with pgvector: binary COPY into a temporary table, then one upsert."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchwright.core.errors import JobError, MissingExtra, Refused, StoreError, Unreachable
from batchwright.core.ports import Fitted
from batchwright.core.stores import EMBEDDING, ID, StoreLimits, StoreShape, StoreTarget
from batchwright.load.postgres_table import (
    Table,
    create_statement,
    index_statement,
    read_table,
    refuse_mismatch,
    stage_type,
    table_name,
)
from batchwright.load.postgres_text import replace_nul
from batchwright.load.rows import (
    dimensions,
    kinds_of,
    numbers,
    payload_bytes,
    payload_names,
    refuse,
)

_STAGE = "batchwright_stage"
_CONNECT_TIMEOUT_S = 15
_LARGEST_HALF = 65_504.0

# Beyond these dimensions pgvector has no index for its types.
_INDEX_DIMENSIONS = {"vector": 2000, "halfvec": 4000}

# SQLSTATE classes: of data that do not fit, and of what passes by itself.
_OF_DATA = ("21", "22", "23", "54")
_PASSING = ("08", "40", "53", "55", "57", "58")
_DISK_FULL = "53100"


class PostgresStore:
    """A table in PostgreSQL. Each thread that writes has a connection of its own."""

    limits = StoreLimits(batch_bytes=8 << 20, row_bytes=512 << 20, batch_rows=20_000, parallel=2)

    def __init__(self, target: StoreTarget) -> None:
        self._target = target
        self._psycopg, self._sql = _load_client()
        self._name = table_name(target.table)
        self._shape: StoreShape | None = None
        self._table = Table("", {}, unique_id=True)
        self._own = threading.local()
        self._connections: list[Any] = []
        self._lock = threading.Lock()

    def open(self, shape: StoreShape, *, create: bool) -> bool:
        """Look at the table, or make it."""
        self._shape = shape
        with self._translated(opening=True):
            connection = self._connection()
            found = read_table(connection, self._name)
            if found is None and create:
                _make_extension(connection, self._psycopg, self._sql)
                connection.execute(create_statement(self._name, shape))
                self._table = read_table(connection, self._name) or self._table
            elif found is not None:
                refuse_mismatch(found, shape, self._target.table)
                self._table = found
        return found is not None

    def identities(self, ids: Sequence[str]) -> list[str]:
        """Ids are stored as they are."""
        return list(ids)

    def fit(self, rows: pa.Table) -> Fitted:
        """NUL becomes U+FFFD in text and JSON; an id with one, or a vector too large, is refused."""
        nul = np.flatnonzero(pc.match_substring(rows.column(ID), "\0").to_numpy())
        problem = "the id holds a NUL character, which PostgreSQL cannot store"
        rows, faults = refuse(rows, {int(place): problem for place in nul}, "bad_id")
        if self._table.vector_type == "halfvec":
            large = np.abs(numbers(rows).astype(np.float32)).max(axis=1, initial=0) > _LARGEST_HALF
            problem = "the vector holds a number beyond the 65,504 of halfvec"
            why = {int(place): problem for place in np.flatnonzero(large)}
            rows, more = refuse(rows, why, "bad_vector")
            faults += more
        rows, replaced = replace_nul(rows, kinds_of(rows))
        return Fitted(rows, faults, {"nul_replaced": replaced} if replaced else {})

    def sizes(self, rows: pa.Table) -> Any:
        """As binary COPY sends them."""
        width = 2 if self._table.vector_type == "halfvec" else 4
        return payload_bytes(rows) + (width * dimensions(rows) + 64)

    def write(self, rows: pa.Table) -> None:
        """COPY, then INSERT ... ON CONFLICT DO UPDATE: rows that are there and equal stay as they are."""
        with self._translated():
            connection = self._connection()
            names = [ID, EMBEDDING, *payload_names(rows)]
            with connection.transaction():
                self._stage(connection)
                copy = self._sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(
                    self._sql.Identifier(_STAGE), self._columns(names)
                )
                with connection.cursor() as cursor, cursor.copy(copy) as stream:
                    stream.set_types(["text", self._own.vector_oid, *self._stage_types()])
                    for row in zip(*self._values(rows), strict=True):
                        stream.write_row(row)
                connection.execute(self._upsert(names))

    def finish(self) -> list[str]:
        """Build the index by which neighbours are found, unless there is one."""
        assert self._shape is not None, "opened before"
        if not self._shape.index or self._table.indexed:
            return []
        label = self._target.table.rpartition(".")[2]
        statement = index_statement(self._name, label, self._table, self._shape, _INDEX_DIMENSIONS)
        if statement is None:
            return [f"pgvector has no index for {self._shape.dimensions:,} dimensions: searches are "
                    "exact, and read the whole table"]  # fmt: skip
        with self._translated(opening=True):
            connection = self._connection()
            # The graph is built many times faster while it fits: 64 MB is the server's default.
            connection.execute("SET maintenance_work_mem = '1GB'")
            try:
                connection.execute(statement)
            except (self._psycopg.errors.DiskFull, self._psycopg.errors.OutOfMemory):
                # Workers share memory in /dev/shm, and a container has 64 MB of that.
                connection.execute("SET max_parallel_maintenance_workers = 0")
                connection.execute("RESET maintenance_work_mem")
                connection.execute(statement)
        return ["built the index (hnsw)"]

    def count(self) -> int:
        """Rows in the table."""
        with self._translated(opening=True):
            query = self._sql.SQL("SELECT count(*) FROM {}").format(self._name)
            return int(self._connection().execute(query).fetchone()[0])

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()
        self._own = threading.local()

    def _connection(self) -> Any:
        """This thread's connection; a new one if the server has closed it."""
        connection = getattr(self._own, "connection", None)
        if connection is None or connection.closed:
            connection = self._psycopg.connect(
                self._target.place, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S,
                fallback_application_name="batchwright",
            )  # fmt: skip
            connection.execute("SET client_min_messages = warning")
            self._own.connection = connection
            self._own.staged = False
            with self._lock:
                self._connections.append(connection)
        return connection

    def _stage(self, connection: Any) -> None:
        """A table of this connection that each transaction finds empty."""
        if getattr(self._own, "staged", False):
            return
        kinds = ["text", self._table.vector_type, *self._stage_types()]
        assert self._shape is not None, "opened before"
        names = [ID, EMBEDDING, *(column.name for column in self._shape.columns or ())]
        columns = self._sql.SQL(", ").join(
            self._sql.SQL("{} {}").format(self._sql.Identifier(name), self._sql.SQL(kind))
            for name, kind in zip(names, kinds, strict=True)
        )
        statement = "CREATE TEMP TABLE IF NOT EXISTS {} ({}) ON COMMIT DELETE ROWS"
        connection.execute(self._sql.SQL(statement).format(self._sql.Identifier(_STAGE), columns))
        self._own.vector_oid = _register_vectors(connection, self._psycopg, self._table.vector_type)
        self._own.staged = True

    def _stage_types(self) -> list[str]:
        assert self._shape is not None, "opened before"
        return [stage_type(column.kind) for column in self._shape.columns or ()]

    def _columns(self, names: Sequence[str]) -> Any:
        return self._sql.SQL(", ").join(map(self._sql.Identifier, names))

    def _upsert(self, names: Sequence[str]) -> Any:
        """In order of ids, so that two loads at the same time wait for each other and do not lock."""
        sql = self._sql
        casts = [
            sql.SQL("{}::{}").format(sql.Identifier(name), sql.SQL(self._table.columns[name]))
            for name in names
        ]
        values = [name for name in names if name != ID]
        old = sql.SQL(", ").join(sql.SQL("t.{}").format(sql.Identifier(name)) for name in values)
        new = [sql.SQL("EXCLUDED.{}").format(sql.Identifier(name)) for name in values]
        updates = [
            sql.SQL("{} = {}").format(sql.Identifier(name), value)
            for name, value in zip(values, new, strict=True)
        ]
        return sql.SQL(
            "INSERT INTO {} AS t ({}) SELECT {} FROM {} ORDER BY 1 ON CONFLICT ({}) DO UPDATE SET {} "
            "WHERE ({}) IS DISTINCT FROM ({})"
        ).format(
            self._name, self._columns(names), sql.SQL(", ").join(casts), sql.Identifier(_STAGE),
            sql.Identifier(ID), sql.SQL(", ").join(updates), old, sql.SQL(", ").join(new),
        )  # fmt: skip

    def _values(self, rows: pa.Table) -> Iterator[Any]:
        """A list of values for each column."""
        yield rows.column(ID).to_pylist()
        yield _binary_vectors(numbers(rows), half=self._table.vector_type == "halfvec")
        for name in payload_names(rows):
            yield rows.column(name).to_pylist()

    @contextmanager
    def _translated(self, *, opening: bool = False) -> Iterator[None]:
        psycopg = self._psycopg
        try:
            yield
        except psycopg.Error as error:
            message = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            state = error.sqlstate or ""
            where = f"PostgreSQL, table {self._target.table}: {message}"
            if state[:2] in _OF_DATA and not opening:
                raise Refused(message) from error
            lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
            passes = not state or (state[:2] in _PASSING and state != _DISK_FULL)
            if lost and passes and not opening:
                raise Unreachable(message) from error
            hint = "A password is read from PGPASSWORD or ~/.pgpass." if opening else ""
            raise StoreError(where, hint) from error


def _binary_vectors(table: Any, *, half: bool) -> list[_Encoded]:
    """Each vector in pgvector's binary format: dimensions, nothing, numbers, in network order."""
    count, dimensions = table.shape
    head = np.array([dimensions, 0], ">u2").tobytes()
    body = table.astype(">f2" if half else ">f4").tobytes()
    size = len(body) // max(1, count)
    return [_Encoded(head + body[i * size : (i + 1) * size]) for i in range(count)]


class _Encoded(bytes):
    """A vector that needs no further encoding."""


def _register_vectors(connection: Any, psycopg: Any, vector_type: str) -> int:
    """Teach a connection to send encoded vectors; returns the number of their type."""
    from psycopg.adapt import Dumper
    from psycopg.types import TypeInfo

    info = TypeInfo.fetch(connection, vector_type)
    if info is None:
        raise JobError(f"the database has no type {vector_type}: its pgvector is too old")

    class AsItIs(Dumper):
        format = psycopg.pq.Format.BINARY
        oid = info.oid

        def dump(self, obj: bytes) -> bytes:
            return obj

    connection.adapters.register_dumper(_Encoded, AsItIs)
    return int(info.oid)


def _load_client() -> tuple[Any, Any]:
    try:
        import psycopg
        from psycopg import sql
    except ImportError as error:
        raise MissingExtra(
            f"postgresql:// needs psycopg ({error})",
            "pip install 'batchwright[pgvector]'",
        ) from None
    return psycopg, sql


def _make_extension(connection: Any, psycopg: Any, sql: Any) -> None:
    there = connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'").fetchone()
    if there:
        return
    try:
        connection.execute(sql.SQL("CREATE EXTENSION IF NOT EXISTS vector"))
    except psycopg.Error as error:
        raise JobError(
            f"the database has no extension vector: {str(error).splitlines()[0]}",
            "Install pgvector on the server, and let a superuser run: CREATE EXTENSION vector;",
        ) from None
