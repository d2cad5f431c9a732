"""Bodies of /v1/embeddings: one input per line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchwright.core.errors import RowError
from batchwright.validate.asked import Asked, check_known, check_only, one_prompt

_HARMLESS = frozenset({"model", "user", "metadata", "priority", "request_id", "cache_salt"})

_ONLY: dict[str, tuple[Any, ...]] = {
    "encoding_format": ("float", "base64"),
    "truncate_prompt_tokens": (),
    "add_special_tokens": (True,),
    "normalize": (),
    "use_activation": (),
    "embed_dtype": ("float32",),
    "endianness": ("native",),
    "messages": (),
    "stream": (False,),
}

FIELDS = _HARMLESS | _ONLY.keys() | {"input", "dimensions"}


def read_embedding(body: dict[str, Any]) -> Asked:
    """What a body for /v1/embeddings asks. Raises RowError."""
    check_known(body, FIELDS)
    check_only(body, _ONLY)
    if body.get("input") is None:
        raise RowError("missing_prompt", "/v1/embeddings needs body.input")
    return Asked({"prompt": one_prompt(body["input"], "input")}, {})


def wanted_dimensions(line: Mapping[str, Any]) -> int | None:
    """How many numbers a line wants, if it says so in a way that makes sense."""
    body = line.get("body")
    wanted = body.get("dimensions") if isinstance(body, Mapping) else None
    return wanted if type(wanted) is int and wanted > 0 else None


def check_dimensions(body: Mapping[str, Any], dimensions: int) -> None:
    """All vectors of a job have one length: refuse a line that wants another."""
    wanted = body.get("dimensions")
    if wanted is not None and (type(wanted) is not int or wanted != dimensions):
        raise RowError(
            "unsupported",
            f"dimensions is {wanted!r}, but this job makes vectors of {dimensions} numbers; set "
            "embedding.dimensions, one job for each length",
        )
