"""Milvus: a collection with typed fields, on a server or in a file (Milvus Lite)."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchwright.core.errors import JobError, MissingExtra, Refused, StoreError, Unreachable
from batchwright.core.ports import Fitted
from batchwright.core.stores import (
    EMBEDDING,
    ID,
    ColumnKind,
    Metric,
    RowFault,
    StoreLimits,
    StoreShape,
    StoreTarget,
)
from batchwright.load.rows import (
    dimensions,
    kinds_of,
    numbers,
    payload_bytes,
    payload_names,
    refuse,
    text_bytes,
)
from batchwright.load.values import json_texts, plain_values

_TIMEOUT_S = 60.0

# Limits of Milvus itself, in bytes.
_TEXT_BYTES = 65_535
_ID_BYTES = 1024
_JSON_BYTES = 65_536

_TYPES: dict[ColumnKind, str] = {
    "bool": "BOOL", "int": "INT64", "float": "DOUBLE", "text": "VARCHAR", "json": "JSON",
    "other": "JSON", "timestamp": "VARCHAR",
}  # fmt: skip
_METRICS: dict[Metric, str] = {"cosine": "COSINE", "l2": "L2", "dot": "IP"}


class MilvusStore:
    """A collection in Milvus."""

    def __init__(self, target: StoreTarget) -> None:
        self._target = target
        self._pymilvus = _load_client()
        self._client: Any = None
        self._shape: StoreShape | None = None
        self._text_bytes: dict[str, int] = {}
        self._integer_id = False
        self.limits = StoreLimits(
            batch_bytes=8 << 20, row_bytes=48 << 20, batch_rows=10_000,
            parallel=1 if target.local else 2,
        )  # fmt: skip

    def open(self, shape: StoreShape, *, create: bool) -> bool:
        """Look at the collection, or make it with its index."""
        self._shape = shape
        name = self._target.table
        with self._translated(opening=True):
            if self._client is None:
                self._client = self._connect()
            there = bool(self._client.has_collection(name))
            if not there and create:
                self._create(shape)
            if there or create:
                described = self._client.describe_collection(name)
                fields = {one["name"]: one for one in described["fields"]}
                if there:
                    self._refuse_mismatch(shape, fields)
                self._text_bytes = {
                    field: int(one["params"]["max_length"])
                    for field, one in fields.items()
                    if "max_length" in one["params"]
                }
                self._integer_id = ID not in self._text_bytes
                self._client.load_collection(name)
        return there

    def identities(self, ids: Sequence[str]) -> list[str]:
        """Ids are stored as they are."""
        return list(ids)

    def fit(self, rows: pa.Table) -> Fitted:
        """Texts have a limit in bytes, JSON too; an id has its own."""
        kinds = kinds_of(rows)
        faults: list[RowFault] = []
        if self._integer_id:
            rows, faults = refuse(rows, _not_integers(rows), "bad_id")
        else:
            rows, faults = self._within(rows, ID, self._text_bytes[ID], "bad_id")
        for name in payload_names(rows):
            if kinds[name] in ("other", "timestamp"):
                texts = (
                    _iso(rows.column(name))
                    if kinds[name] == "timestamp"
                    else json_texts(rows.column(name))
                )
                place = rows.schema.get_field_index(name)
                rows = rows.set_column(place, name, pa.array(texts, pa.large_string()))
            if kinds[name] in ("text", "timestamp", "json", "other"):
                limit = self._text_bytes.get(name, _JSON_BYTES)
                rows, more = self._within(rows, name, limit, "value_too_long")
                faults += more
        return Fitted(rows, faults, {})

    def sizes(self, rows: pa.Table) -> Any:
        """As protobuf sends them."""
        return payload_bytes(rows) + (4 * dimensions(rows) + 64)

    def write(self, rows: pa.Table) -> None:
        """Upsert: unlike insert it leaves one row for each id."""
        kinds = kinds_of(rows)
        ids: list[Any] = rows.column(ID).to_pylist()
        if self._integer_id:
            ids = [int(one) for one in ids]
        columns: dict[str, Sequence[Any]] = {
            ID: ids,
            EMBEDDING: list(numbers(rows).astype(np.float32, copy=False)),
        }
        for name in payload_names(rows):
            kind = _sent_as(kinds[name])
            columns[name] = plain_values(rows.column(name), kind)
        names = list(columns)
        data = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        with self._translated():
            self._client.upsert(self._target.table, data, timeout=_TIMEOUT_S)

    def finish(self) -> list[str]:
        """Seal what is there, so that its index is built."""
        with self._translated(opening=True):
            self._client.flush(self._target.table)
        return []

    def count(self) -> int:
        """Rows in the collection, those of the last moment too."""
        with self._translated(opening=True):
            found = self._client.query(
                self._target.table, filter="", output_fields=["count(*)"],
                consistency_level="Strong", timeout=_TIMEOUT_S,
            )  # fmt: skip
        return int(found[0]["count(*)"])

    def close(self) -> None:
        """Let go of the connection, or of the file."""
        if self._client is not None:
            self._client.close()
            self._client = None
            if self._target.local:
                from milvus_lite.server_manager import server_manager_instance

                # Its server in this process would keep the file locked for all others.
                server_manager_instance.release_server(self._target.place)

    def _connect(self) -> Any:
        # Each refused request would print a traceback of its own.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        return self._pymilvus.MilvusClient(
            self._target.place, token=os.environ.get("MILVUS_TOKEN", ""),
            db_name=self._target.options.get("db", ""), timeout=_TIMEOUT_S,
        )  # fmt: skip

    def _create(self, shape: StoreShape) -> None:
        kinds = self._pymilvus.DataType
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field(ID, kinds.VARCHAR, is_primary=True, max_length=_ID_BYTES)
        schema.add_field(EMBEDDING, kinds.FLOAT_VECTOR, dim=shape.dimensions)
        for column in shape.columns or ():
            more = {"max_length": _TEXT_BYTES} if _TYPES[column.kind] == "VARCHAR" else {}
            schema.add_field(
                column.name, getattr(kinds, _TYPES[column.kind]), nullable=True, **more
            )
        index = self._client.prepare_index_params()
        kind = "AUTOINDEX" if shape.index else "FLAT"
        index.add_index(EMBEDDING, index_type=kind, metric_type=_METRICS[shape.metric])
        self._client.create_collection(self._target.table, schema=schema, index_params=index)

    def _refuse_mismatch(self, shape: StoreShape, fields: dict[str, Any]) -> None:
        name, another = (
            self._target.table,
            "Load into another collection, which is made if it does not exist.",
        )
        kinds = self._pymilvus.DataType
        vector, key = fields.get(EMBEDDING), fields.get(ID)
        if vector is None or vector["type"] != kinds.FLOAT_VECTOR:
            raise JobError(f"collection {name} has no field {EMBEDDING} of float vectors", another)
        size = int(vector["params"]["dim"])
        if size != shape.dimensions:
            raise JobError(
                f"collection {name} has vectors of {size} dimensions, the run makes "
                f"{shape.dimensions}", another,
            )  # fmt: skip
        if key is None or not key.get("is_primary") or key.get("auto_id"):
            raise JobError(
                f"collection {name}: {ID} is not its primary key, or is given by Milvus", another
            )
        for column in shape.columns or ():
            if column.name not in fields:
                raise JobError(
                    f"collection {name} lacks the field {column.name}",
                    f"Choose columns: --columns. {another}",
                )
            found = fields[column.name]["type"]
            if found != getattr(kinds, _TYPES[column.kind]):
                raise JobError(
                    f"collection {name}: field {column.name} is {found.name}, the run has {column.kind}",
                    f"Choose columns: --columns. {another}",
                )
        self._refuse_metric(shape, another)

    def _refuse_metric(self, shape: StoreShape, another: str) -> None:
        found = self._client.describe_index(self._target.table, EMBEDDING) or {}
        metric = found.get("metric_type", _METRICS[shape.metric])
        if metric != _METRICS[shape.metric]:
            raise JobError(
                f"collection {self._target.table} compares by {metric}, the load by {shape.metric}",
                f"Give --metric (load.metric). {another}",
            )

    def _within(
        self, rows: pa.Table, name: str, limit: int, code: str
    ) -> tuple[pa.Table, list[RowFault]]:
        sizes = text_bytes(rows.column(name))
        long = {
            int(
                place
            ): f"{name} has {int(sizes[place]):,} bytes in UTF-8, the field takes {limit:,}"
            for place in np.flatnonzero(sizes > limit)
        }
        return refuse(rows, long, code)

    @contextmanager
    def _translated(self, *, opening: bool = False) -> Iterator[None]:
        import grpc

        where = f"Milvus, collection {self._target.table}"
        try:
            yield
        except (self._pymilvus.MilvusException, grpc.RpcError) as error:
            message = str(getattr(error, "message", "") or error).splitlines()[0][:300]
            if opening or _is_of_permission(message):
                known = "A token (user:password, or a key) is read from MILVUS_TOKEN."
                hint = "" if self._target.local else known
                raise StoreError(f"{where}: {message}", hint) from error
            if isinstance(error, grpc.RpcError) or _is_passing(error, message):
                raise Unreachable(message) from error
            raise Refused(message) from error


def _is_passing(error: Any, message: str) -> bool:
    from pymilvus.exceptions import ConnectionNotExistException, MilvusUnavailableException

    kinds = (MilvusUnavailableException, ConnectionNotExistException)
    words = (
        "unavailable",
        "deadline",
        "timeout",
        "timed out",
        "rate limit",
        "not ready",
        "connect",
    )
    return isinstance(error, kinds) or any(word in message.lower() for word in words)


def _is_of_permission(message: str) -> bool:
    return any(word in message.lower() for word in ("permission", "auth check", "unauthenticated"))


def _not_integers(rows: pa.Table) -> dict[int, str]:
    """Places of ids that a field of 64-bit integers cannot hold as they are."""
    bad = {}
    for place, text in enumerate(rows.column(ID).to_pylist()):
        digits = text.removeprefix("-")
        if not (
            digits.isascii()
            and digits.isdecimal()
            and str(int(text)) == text
            and abs(int(text)) < 2**63
        ):
            bad[place] = f"the id {text!r} is not an integer, as the collection's ids are"
    return bad


def _sent_as(kind: ColumnKind) -> ColumnKind:
    """Nested values are JSON text by now, and times are text."""
    if kind == "other":
        return "json"
    return "text" if kind == "timestamp" else kind


def _iso(column: pa.ChunkedArray) -> list[str | None]:
    texts = pc.replace_substring(column.cast(pa.string()), " ", "T", max_replacements=1)
    found: list[str | None] = texts.to_pylist()
    return found


def _load_client() -> Any:
    try:
        import pymilvus
    except ImportError as error:
        raise MissingExtra(
            f"milvus:// needs pymilvus ({error})",
            "pip install 'batchwright[milvus]' (and milvus-lite, for a file)",
        ) from None
    return pymilvus
