"""NUL characters, which PostgreSQL's text and jsonb cannot hold, become U+FFFD."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchwright.load.rows import payload_names
from batchwright.load.values import json_texts

NUL = "\0"
IN_ITS_PLACE = "\ufffd"

# How JSON text spells it; an escaped backslash ahead of it makes it plain text.
_ESCAPED = "\\u0000"


def replace_nul(rows: pa.Table, kinds: Mapping[str, str]) -> tuple[pa.Table, int]:
    """The table without NUL, nested values as JSON text; and in how many rows there was a NUL."""
    changed = np.zeros(rows.num_rows, np.bool_)
    for name in payload_names(rows):
        column, index = rows.column(name), rows.schema.get_field_index(name)
        if kinds[name] == "other":
            column = pa.chunked_array([pa.array(json_texts(column), pa.large_string())])
            rows = rows.set_column(index, name, column)
        if kinds[name] not in ("text", "json", "other"):
            continue
        is_text = kinds[name] == "text"
        held = _places(column, NUL if is_text else _ESCAPED)
        if not len(held):
            continue
        values = column.to_pylist()
        for place in held:
            old = values[place]
            values[place] = old.replace(NUL, IN_ITS_PLACE) if is_text else _in_json(old)
            changed[place] |= values[place] != old
        rows = rows.set_column(index, name, pa.array(values, column.type))
    return rows, int(changed.sum())


def _places(column: pa.ChunkedArray, what: str) -> list[int]:
    held = pc.fill_null(pc.match_substring(column, what), False)  # noqa: FBT003
    return [int(place) for place in np.flatnonzero(held.to_numpy())]


def _in_json(text: str) -> str:
    value = json.loads(text)
    cleaned = _cleaned(value)
    return text if cleaned == value else json.dumps(cleaned, ensure_ascii=False)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace(NUL, IN_ITS_PLACE)
    if isinstance(value, list):
        return [_cleaned(one) for one in value]
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(one) for key, one in value.items()}
    return value
