"""Qdrant: points with a payload, over HTTP or in its client's own local mode."""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from batchwright.core.errors import JobError, MissingExtra, Refused, StoreError, Unreachable
from batchwright.core.ports import Fitted
from batchwright.core.stores import ID, StoreLimits, StoreShape, StoreTarget
from batchwright.load.rows import (
    NUMERIC_ID,
    dimensions,
    kinds_of,
    numbers,
    payload_bytes,
    payload_names,
)
from batchwright.load.values import plain_values

# What a server takes unless configured otherwise (service.max_request_size_mb: 32).
REQUEST_BYTES = 32 << 20

# A float32 as JSON has up to so many characters, as Python writes the double that it becomes.
_JSON_NUMBER_BYTES = 24

_TIMEOUT_S = 60

# Ids that are neither whole numbers nor UUIDs become UUIDs of their own; never change this.
NAMESPACE = uuid.UUID("5b3a7d4e-8c7b-5c1e-9d0a-2f4c6a1b9e37")

_BIGGEST = 2**64

# Links of a graph node; a collection that is being filled has none, which is many times faster.
_GRAPH_LINKS = 16

_PASSING = {408, 425, 429, 500, 502, 503, 504}
_OF_DATA = {400, 409, 413, 422}


def point_id(text: str) -> int | str:
    """The id of a point: whole numbers below 2^64 and UUIDs as they are, others as a UUID made of them.

    The same text gives the same id, in every process.
    """
    if text.isascii() and text.isdecimal() and (text == "0" or text[0] != "0"):
        number = int(text)
        if number < _BIGGEST:
            return number
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return str(uuid.uuid5(NAMESPACE, text))


class QdrantStore:
    """A collection in Qdrant."""

    def __init__(self, target: StoreTarget) -> None:
        self._target = target
        self._client_module = _load_client()
        self._client: Any = None
        self._shape: StoreShape | None = None
        self.limits = StoreLimits(
            batch_bytes=8 << 20, row_bytes=REQUEST_BYTES - (64 << 10), batch_rows=1000,
            parallel=1 if target.local else 4, typed=False, merges_ids=True,
        )  # fmt: skip

    def open(self, shape: StoreShape, *, create: bool) -> bool:
        """Look at the collection, or make it."""
        self._shape = shape
        models = self._client_module.models
        with self._translated(opening=True):
            if self._client is None:
                self._client = self._connect()
            there = self._client.collection_exists(self._target.table)
            if there:
                self._refuse_mismatch(shape)
            elif create:
                self._client.create_collection(
                    self._target.table,
                    vectors_config=models.VectorParams(
                        size=shape.dimensions, distance=self._distance(shape),
                        datatype=models.Datatype.FLOAT16 if shape.half else None,
                    ),
                    # The graph is built when all points are there.
                    hnsw_config=models.HnswConfigDiff(m=0),
                )  # fmt: skip
        return bool(there)

    def identities(self, ids: Sequence[str]) -> list[str]:
        """Two spellings of a UUID are one point."""
        return [str(point_id(one)) for one in ids]

    def fit(self, rows: pa.Table) -> Fitted:
        """A payload takes anything that JSON can hold."""
        return Fitted(rows, [], {})

    def sizes(self, rows: pa.Table) -> Any:
        """As JSON: a vector takes six times as much as its bytes."""
        names = sum(len(name.encode()) + 8 for name in payload_names(rows))
        return payload_bytes(rows) + (_JSON_NUMBER_BYTES * dimensions(rows) + names + 128)

    def write(self, rows: pa.Table) -> None:
        """Upsert points, and wait until they are searchable."""
        batch = self._client_module.models.Batch(
            ids=[point_id(one) for one in rows.column(ID).to_pylist()],
            vectors=numbers(rows).astype(np.float32, copy=False).tolist(),
            payloads=self._payloads(rows),
        )
        with self._translated():
            self._client.upsert(self._target.table, points=batch, wait=True)

    def finish(self) -> list[str]:
        """Have the graph built, where this load made the collection without one."""
        assert self._shape is not None, "opened before"
        if not self._shape.index or self._target.local:
            return []
        models = self._client_module.models
        with self._translated(opening=True):
            config = self._client.get_collection(self._target.table).config.hnsw_config
            if config is None or config.m != 0:
                return []
            self._client.update_collection(
                self._target.table, hnsw_config=models.HnswConfigDiff(m=_GRAPH_LINKS)
            )
        return ["Qdrant builds the index (hnsw) in the background"]

    def count(self) -> int:
        """Points in the collection."""
        with self._translated(opening=True):
            return int(self._client.count(self._target.table, exact=True).count)

    def close(self) -> None:
        """Let go of the connection, or of the folder."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connect(self) -> Any:
        client = self._client_module.QdrantClient
        if self._target.local:
            return client(path=self._target.place, force_disable_check_same_thread=True)
        with warnings.catch_warnings():  # of a key without TLS: the docs tell of qdrant+https
            warnings.simplefilter("ignore", UserWarning)
            return client(
                url=self._target.place, api_key=os.environ.get("QDRANT_API_KEY") or None,
                timeout=_TIMEOUT_S, check_compatibility=False,
            )  # fmt: skip

    def _distance(self, shape: StoreShape) -> Any:
        distance = self._client_module.models.Distance
        return {"cosine": distance.COSINE, "l2": distance.EUCLID, "dot": distance.DOT}[shape.metric]

    def _refuse_mismatch(self, shape: StoreShape) -> None:
        found = self._client.get_collection(self._target.table).config.params.vectors
        name = self._target.table
        if found is None or isinstance(found, dict):
            raise JobError(
                f"collection {name} has named vectors", "Load into one with a single vector."
            )
        if found.size != shape.dimensions:
            raise JobError(
                f"collection {name} has vectors of {found.size} dimensions, the run makes "
                f"{shape.dimensions}",
                "Load into another collection, which is made if it does not exist.",
            )
        if found.distance != self._distance(shape):
            raise JobError(
                f"collection {name} compares by {found.distance.value}, the load by {shape.metric}",
                "Give --metric (load.metric), or load into another collection.",
            )

    def _payloads(self, rows: pa.Table) -> list[dict[str, Any]]:
        """The columns by name; ahead of them the id as the input had it, text or number."""
        kinds = kinds_of(rows)
        numeric = rows.column(NUMERIC_ID).to_pylist()
        ids = rows.column(ID).to_pylist()
        columns: dict[str, Sequence[Any]] = {
            ID: [int(one) if number else one for one, number in zip(ids, numeric, strict=True)]
        }
        for name in payload_names(rows):
            columns[name] = plain_values(rows.column(name), kinds[name])
        names = list(columns)
        return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    @contextmanager
    def _translated(self, *, opening: bool = False) -> Iterator[None]:
        from qdrant_client.http import exceptions

        where = f"Qdrant, collection {self._target.table}"
        key = "A key is read from QDRANT_API_KEY."
        try:
            yield
        except exceptions.UnexpectedResponse as error:
            status, said = error.status_code or 0, _said(error)
            if status in (401, 403) or opening or status not in _PASSING | _OF_DATA:
                hint = key if status in (401, 403) else ""
                raise StoreError(f"{where}: HTTP {status}: {said}", hint) from error
            kind = Unreachable if status in _PASSING else Refused
            raise kind(f"HTTP {status}: {said}") from error
        except exceptions.ResponseHandlingException as error:
            message = str(error) or repr(error.source)
            if opening:
                raise StoreError(f"{where}: {self._target.place}: {message}", key) from error
            raise Unreachable(message) from error
        except RuntimeError as error:  # the local mode's lock
            raise StoreError(f"{where}: {error}") from error
        except ValueError as error:  # the local mode's checks
            if opening:
                raise StoreError(f"{where}: {error}") from error
            raise Refused(str(error)) from error


def _said(error: Any) -> str:
    """What the server says of its own refusal, shortened."""
    text = (error.content or b"").decode("utf-8", "replace").strip() or str(error.reason_phrase)
    return text[:300]


def _load_client() -> Any:
    try:
        import qdrant_client
    except ImportError as error:
        raise MissingExtra(
            f"qdrant:// needs qdrant-client ({error})", "pip install 'batchwright[qdrant]'"
        ) from None
    return qdrant_client
