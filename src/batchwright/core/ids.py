"""Identity: canonical JSON and the hashes made from it."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson


def canonical_json(value: Any) -> str:
    """One text for equal values: sorted keys, no white space."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def digest(value: Any) -> str:
    """Short hash of any JSON value (16 bytes of BLAKE2b, hex)."""
    return hashlib.blake2b(canonical_json(value).encode(), digest_size=16).hexdigest()


def text_digest(text: str) -> bytes:
    """16 bytes that stand for a text. Two of 10^8 ids collide with probability 10^-23."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
