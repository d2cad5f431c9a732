"""Rows of a part to rows of a database: ids, vectors and the columns that travel with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from batchwright.core.errors import LOAD_CODES
from batchwright.core.stores import EMBEDDING, ID, ColumnKind, RowFault, StoreShape

NUMERIC_ID = "numeric_id"

# In the metadata of a table of rows: the kinds of its columns, which Arrow types do not tell.
_KINDS = b"batchwright.kinds"

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns of a result become what.

    Attributes:
        id_source: the column that the id is taken from.
        typed_source: the input's own column of the ids, which says whether one was a number; None
            where rows are known by their number.
        columns: name in the result to name in the database.
        json: those of them, by their name in the result, that hold JSON text.
    """

    id_source: str
    typed_source: str | None
    columns: dict[str, str]
    json: frozenset[str]


def column_kind(kind: pa.DataType, *, is_json: bool) -> ColumnKind:
    """What a column of the results is, in the few words that databases share."""
    tests: Sequence[tuple[ColumnKind, Callable[[pa.DataType], bool]]] = (
        ("bool", pa.types.is_boolean),
        ("int", pa.types.is_integer),
        ("float", pa.types.is_floating),
        ("timestamp", pa.types.is_timestamp),
        ("text", lambda one: pa.types.is_string(one) or pa.types.is_large_string(one)),
    )
    if is_json:
        return "json"
    return next((name for name, test in tests if test(kind)), "other")


def make_rows(
    results: pa.Table, layout: Layout, shape: StoreShape
) -> tuple[pa.Table, list[RowFault]]:
    """The rows that may be stored anywhere, and why the others may not."""
    ids, numeric, bad = _ids(results, layout)
    rows = results.column("row").to_pylist()
    faults = {}
    error = zip(
        results.column("error_code").to_pylist(), results.column("error").to_pylist(), strict=True
    )
    for place, (code, message) in enumerate(error):
        if code is not None:
            faults[place] = ("no_vector", f"{code}: {message}")
        elif place in bad:
            faults[place] = ("bad_id", bad[place])
    vectors = _one_piece(results.column(EMBEDDING))
    for place, problem in _bad_vectors(vectors, shape).items():
        faults.setdefault(place, ("bad_vector", problem))
    columns = {
        "row": results.column("row"),
        ID: pa.array(ids, pa.large_string()),
        NUMERIC_ID: pa.array(numeric, pa.bool_()),
        EMBEDDING: vectors,
        **{name: _storable(results.column(source)) for source, name in layout.columns.items()},
    }
    found = [RowFault(rows[i], ids[i], *why) for i, why in sorted(faults.items())]
    kinds = {column.name: column.kind for column in shape.columns or ()}
    table = pa.table(columns).replace_schema_metadata({_KINDS: orjson.dumps(kinds)})
    return without(table, faults), found


def kinds_of(rows: pa.Table) -> dict[str, ColumnKind]:
    """What each column beside id and vector is."""
    kinds: dict[str, ColumnKind] = orjson.loads(rows.schema.metadata[_KINDS])
    return kinds


def _storable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times to the microsecond: databases keep no more."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return column.cast(pa.timestamp("us", kind.tz), safe=False)
    return column


def without(table: pa.Table, places: Any) -> pa.Table:
    """The table without the rows at these places."""
    if not places:
        return table
    keep = np.ones(table.num_rows, np.bool_)
    keep[list(places)] = False
    return table.filter(pa.array(keep))


def refuse(table: pa.Table, why: dict[int, str], code: str) -> tuple[pa.Table, list[RowFault]]:
    """The table without some rows, and their faults: place to message."""
    assert code in LOAD_CODES
    if not why:
        return table, []
    places = sorted(why)
    rows = table.column("row").take(places).to_pylist()
    ids = table.column(ID).take(places).to_pylist()
    faults = [
        RowFault(row, name, code, why[i]) for row, name, i in zip(rows, ids, places, strict=True)
    ]
    return without(table, places), faults


def numbers(table: pa.Table) -> npt.NDArray[Any]:
    """The vectors as an array [rows, dimensions] of the type that they have."""
    column = _one_piece(table.column(EMBEDDING))
    flat: npt.NDArray[Any] = column.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(column), column.type.list_size)


def dimensions(table: pa.Table) -> int:
    """Numbers of each vector."""
    return int(table.schema.field(EMBEDDING).type.list_size)


def _one_piece(column: pa.ChunkedArray) -> Any:
    """A column as one array; it is not copied if it is one already."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def payload_names(table: pa.Table) -> list[str]:
    """The columns beside row, id and vector."""
    names: list[str] = table.column_names[4:]
    return names


def text_bytes(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Bytes of each text; 0 for null."""
    lengths: npt.NDArray[np.int64] = pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return lengths.astype(np.int64)


def payload_bytes(table: pa.Table) -> npt.NDArray[np.int64]:
    """Bytes of id and columns of each row, about: numbers as 24, nested values by their mean."""
    total = text_bytes(table.column(ID))
    for name in payload_names(table):
        column = table.column(name)
        kind = column_kind(column.type, is_json=False)
        each = column.nbytes // max(1, table.num_rows) if kind == "other" else 24
        total = total + (text_bytes(column) if kind == "text" else each)
    return total


def _bad_vectors(vectors: Any, shape: StoreShape) -> dict[int, str]:
    """Places of vectors that no database finds again, with the reason."""
    there = vectors.is_valid().to_numpy(zero_copy_only=False)
    flat = vectors.flatten().to_numpy(zero_copy_only=False)  # without the null ones
    table = flat.reshape(int(there.sum()), shape.dimensions).astype(np.float32, copy=False)
    places = np.flatnonzero(there)
    finite = np.isfinite(table).all(axis=1)
    bad = {int(i): "the vector holds a number that is not finite" for i in places[~finite]}
    if shape.metric == "cosine":
        zero = finite & ~table.any(axis=1)
        bad |= {
            int(i): "the vector has length 0, and so no angle to any other" for i in places[zero]
        }
    missing = np.flatnonzero(~there)
    return bad | {int(i): "there is no vector" for i in missing}


def _ids(results: pa.Table, layout: Layout) -> tuple[list[str | None], list[bool], dict[int, str]]:
    """Each row's id as text, whether it was a number, and what is wrong with those without one."""
    values = results.column(layout.id_source).to_pylist()
    if layout.id_source == "id":
        numeric = _were_numbers(results, layout)
        return values, numeric, {i: "the row has no id" for i, one in enumerate(values) if not one}
    ids: list[str | None] = []
    numeric = []
    bad = {}
    is_json = layout.id_source in layout.json
    for place, value in enumerate(values):
        given = orjson.loads(value) if is_json and value is not None else value
        number = type(given) is int
        good = number or (isinstance(given, str) and given != "")
        if not good:
            shown = "missing" if given is None or given == "" else f"{given!r}"
            bad[place] = f"the id in {layout.id_source} is {shown}: text or an integer is needed"
        ids.append(str(given) if good else None)
        numeric.append(number)
    return ids, numeric, bad


def _were_numbers(results: pa.Table, layout: Layout) -> list[bool]:
    """Ids of a run are text; what they were in the input stands in a column of its own."""
    source = layout.typed_source
    if source is None:
        return [True] * results.num_rows  # row numbers
    if source not in results.column_names:
        return [False] * results.num_rows
    column = results.column(source)
    if source in layout.json:
        starts = [(value or '"')[0] for value in column.to_pylist()]
        return [start in "-0123456789" for start in starts]
    return [pa.types.is_integer(column.type)] * results.num_rows
