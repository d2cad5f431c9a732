"""Records as JSON files that say which format they are in."""

from __future__ import annotations

from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from batchwright.core.errors import Damaged, StorageError
from batchwright.core.schemas import FORMAT_VERSION

Record = TypeVar("Record")

_REDONE = "Delete that one file and run the same command again: what it stood for is redone."

# What is not redone.
_LASTING = {
    "Manifest": "Put a copy of it back, or start again in another run directory (--dir): without it "
    "nobody knows what the answers are to.",
    "OrderBatch": "If it is the last one, `batchwright run` makes it again. Else put a copy of it back, or start again in another run directory (--dir): rows have their "
    "numbers from it.",
}

# What is redone, but not by deleting that one file alone.
_HINTS = {
    "Receipt": "Delete all receipts of that chunk and run the same command again: the chunk is run again.",
}

_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def _adapter(kind: type) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:  # building one takes a millisecond
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def dump(record: Any) -> bytes:
    """A record as readable JSON with its format version."""
    body = _adapter(type(record)).dump_python(record, mode="json")
    return orjson.dumps({"version": FORMAT_VERSION, **body}, option=orjson.OPT_INDENT_2)


def version_of(raw: bytes) -> int:
    """The format of a record that can be loaded."""
    return int(orjson.loads(raw)["version"])


def load(kind: type[Record], raw: bytes, name: str) -> Record:
    """A record from its JSON. Raises StorageError naming the file if it is damaged, Damaged if for good."""
    try:
        body = dict(orjson.loads(raw))
        version = int(body.pop("version"))
        if version > FORMAT_VERSION:
            raise Damaged(
                f"{name} was written by a newer batchwright (format {version})",
                "Install that version, or start again in another run directory.",
            )
        record: Record = _adapter(kind).validate_python(body)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, ValidationError) as error:
        what = f"{name} is damaged: {str(error).splitlines()[0]}"
        if kind.__name__ in _LASTING:
            raise Damaged(what, _LASTING[kind.__name__]) from error
        raise StorageError(what, _HINTS.get(kind.__name__, _REDONE)) from error
    return record
