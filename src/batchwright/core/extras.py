"""What a row carries beside its tokens and sampling fields: a JSON object, or nothing."""

from __future__ import annotations

from functools import lru_cache

import orjson

ADAPTER = "adapter"


def joined_extras(first: str | None, second: str | None) -> str | None:
    """Two sets of extras as one; None if both are empty."""
    if not first or not second:
        return first or second or None
    return orjson.dumps({**orjson.loads(first), **orjson.loads(second)}).decode()


def adapter_of(extras: str | None) -> str | None:
    """Name of the LoRA adapter that answers a row; None for the model itself."""
    # Tools can be long and differ from row to row: they must not fill the cache below.
    return _adapter(extras) if extras and '"adapter"' in extras else None


@lru_cache(maxsize=1024)
def _adapter(extras: str) -> str | None:
    found = orjson.loads(extras).get(ADAPTER)
    return found if isinstance(found, str) else None
