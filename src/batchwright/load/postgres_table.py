"""What a table in PostgreSQL must look like: read from the catalogue, made, indexed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from batchwright.core.errors import JobError
from batchwright.core.stores import EMBEDDING, ID, ColumnKind, Metric, StoreShape

# Longer names are cut by the server in silence.
_NAME_BYTES = 63

_TYPES: dict[ColumnKind, str] = {
    "bool": "boolean", "int": "bigint", "float": "double precision", "text": "text",
    "json": "jsonb", "other": "jsonb", "timestamp": "timestamptz",
}  # fmt: skip

# What a column that is there may be, beside what would be made.
_ALSO: dict[ColumnKind, tuple[str, ...]] = {
    "bool": (), "int": ("integer", "smallint", "numeric", "double precision"),
    "float": ("real", "numeric"), "text": ("character varying", "character", "citext"),
    "json": (), "other": (), "timestamp": ("timestamp without time zone",),
}  # fmt: skip

_OPERATORS: dict[Metric, str] = {"cosine": "cosine_ops", "l2": "l2_ops", "dot": "ip_ops"}


@dataclass(frozen=True, slots=True)
class Table:
    """A table as the catalogue has it.

    Attributes:
        vector_type: `vector` or `halfvec`.
        columns: each column's type as SQL, in full.
        unique_id: whether a unique index is on the id alone.
        indexed: whether the vectors have an index.
        required: further columns that may not be null and have no default.
        dimensions: of the vectors; -1 if the column takes any.
    """

    vector_type: str
    columns: dict[str, str]
    unique_id: bool
    indexed: bool = False
    required: tuple[str, ...] = ()
    dimensions: int = -1


def table_name(name: str) -> Any:
    """`schema.table` or `table`, quoted."""
    from psycopg import sql

    parts = name.split(".")
    if len(parts) > 2 or not all(parts):
        raise JobError(f"{name} is not a table's name", "Give TABLE or SCHEMA.TABLE.")
    return sql.Identifier(*parts)


def stage_type(kind: ColumnKind) -> str:
    """The type in which a column is sent: JSON as text, which the server parses."""
    return {"json": "text", "other": "text", "int": "int8", "float": "float8"}.get(
        kind, _TYPES[kind]
    )


def create_statement(name: Any, shape: StoreShape) -> Any:
    """CREATE TABLE for the shape; more than 2,000 dimensions only have an index as halfvec."""
    from psycopg import sql

    columns = shape.columns or ()
    long = [column.name for column in columns if len(column.name.encode()) > _NAME_BYTES]
    if long:
        raise JobError(f"column {long[0]!r}: PostgreSQL has names of {_NAME_BYTES} bytes at most")
    half = shape.half or (shape.index and 2000 < shape.dimensions <= 4000)
    vector = f"{'halfvec' if half else 'vector'}({shape.dimensions})"
    rest = [
        sql.SQL(", {} {}").format(sql.Identifier(column.name), sql.SQL(_TYPES[column.kind]))
        for column in columns
    ]
    return sql.SQL("CREATE TABLE {} ({} text PRIMARY KEY, {} {} NOT NULL{})").format(
        name, sql.Identifier(ID), sql.Identifier(EMBEDDING), sql.SQL(vector), sql.SQL("").join(rest)
    )


def read_table(connection: Any, name: Any) -> Table | None:
    """The table as it is; None if there is none."""
    quoted = name.as_string(connection)
    oid = connection.execute("SELECT to_regclass(%s)::oid", [quoted]).fetchone()[0]
    if oid is None:
        return None
    columns = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod), atttypmod, "
        "attnotnull AND NOT atthasdef AND attidentity = '' AND attgenerated = '' "
        "FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        [oid],
    ).fetchall()
    indexes = connection.execute(
        "SELECT array_agg(a.attname ORDER BY a.attnum), bool_or(i.indisunique AND i.indpred IS NULL), "
        "min(m.amname) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
        "JOIN pg_am m ON m.oid = c.relam "
        "LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) "
        "WHERE i.indrelid = %s GROUP BY i.indexrelid",
        [oid],
    ).fetchall()
    types = {column: kind for column, kind, _, _ in columns}
    vector = types.get(EMBEDDING, "")
    return Table(
        vector_type=vector.partition("(")[0],
        columns=types,
        unique_id=any(unique and names == [ID] for names, unique, _ in indexes),
        indexed=any(method in ("hnsw", "ivfflat") for _, _, method in indexes),
        required=tuple(column for column, _, _, required in columns if required),
        dimensions=next((size for column, _, size, _ in columns if column == EMBEDDING), -1),
    )


def refuse_mismatch(found: Table, shape: StoreShape, name: str) -> None:
    """Raise JobError where the table that is there cannot take the rows."""
    if found.vector_type not in ("vector", "halfvec"):
        raise JobError(
            f"table {name} has no column {EMBEDDING} of pgvector's type vector or halfvec",
            "Load into another table, which is made if it does not exist.",
        )
    if found.dimensions not in (-1, shape.dimensions):
        raise JobError(
            f"table {name} has vectors of {found.dimensions} dimensions, the run makes "
            f"{shape.dimensions}",
            "Load into another table, or set embedding.dimensions in a run of its own.",
        )
    if not found.unique_id:
        raise JobError(
            f"table {name} has no unique index on {ID}, so a row could be there twice",
            f"ALTER TABLE {name} ADD PRIMARY KEY ({ID});",
        )
    if shape.columns is not None:
        _refuse_columns(found, shape, name)


def _refuse_columns(found: Table, shape: StoreShape, name: str) -> None:
    wanted = {column.name: column.kind for column in shape.columns or ()}
    missing = [column for column in wanted if column not in found.columns]
    if missing:
        adds = ", ".join(f'ADD COLUMN "{column}" {_TYPES[wanted[column]]}' for column in missing)
        raise JobError(
            f"table {name} lacks the column {', '.join(missing)}",
            f"ALTER TABLE {name} {adds}; or choose columns: --columns.",
        )
    for column, kind in wanted.items():
        there = found.columns[column].partition("(")[0]
        if there not in (_full_name(kind), *_ALSO[kind]):
            raise JobError(
                f"table {name}: column {column} is {found.columns[column]}, the run has {kind}",
                f"Change it to {_TYPES[kind]}, or choose columns: --columns.",
            )
    unfilled = [one for one in found.required if one not in (ID, EMBEDDING, *wanted)]
    if unfilled:
        raise JobError(
            f"table {name}: column {unfilled[0]} may not be null, and the load has no value for it",
            "Give it a default, or load a column of that name.",
        )


def _full_name(kind: ColumnKind) -> str:
    return {"timestamp": "timestamp with time zone"}.get(kind, _TYPES[kind])


def index_statement(
    name: Any, label: str, table: Table, shape: StoreShape, most: dict[str, int]
) -> Any | None:
    """CREATE INDEX for the vectors; None where pgvector has none for so many dimensions."""
    from psycopg import sql

    kind, column = table.vector_type, sql.Identifier(EMBEDDING)
    expression = sql.SQL("{}").format(column)
    if shape.dimensions > most[kind]:
        kind = "halfvec"  # by a cast: the column keeps its precision
        expression = sql.SQL("({}::{})").format(column, sql.SQL(f"halfvec({shape.dimensions})"))
    if shape.dimensions > most[kind]:
        return None
    operators = f"{kind}_{_OPERATORS[shape.metric]}"
    own = f"{label}_{EMBEDDING}_hnsw".encode()[:_NAME_BYTES].decode(errors="ignore")
    # A load that was killed while the server built the index finds it there.
    return sql.SQL("CREATE INDEX IF NOT EXISTS {} ON {} USING hnsw ({} {})").format(
        sql.Identifier(own), name, expression, sql.SQL(operators)
    )
