"""Values of Arrow columns as JSON has them, for databases whose columns have no types of their own."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pyarrow as pa


def plain_values(column: pa.ChunkedArray, kind: str) -> list[Any]:
    """Python values that JSON can hold: JSON text is parsed, times are ISO 8601, NaN is null."""
    values: list[Any] = column.to_pylist()
    if kind == "json":
        return [None if value is None else orjson.loads(value) for value in values]
    if kind in ("timestamp", "other"):
        return [_plain(value) for value in values]
    if kind == "float":
        return [
            value if value is not None and abs(value) < float("inf") else None for value in values
        ]
    return values


def json_texts(column: pa.ChunkedArray) -> list[str | None]:
    """Nested and odd values as JSON text."""
    return [
        None if value is None else orjson.dumps(_plain(value)).decode()
        for value in column.to_pylist()
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if value is None or isinstance(value, str | int | bool):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
