"""After a power cut: drop the files that were being written, so that what they stood for is redone."""

from __future__ import annotations

import re

import orjson

from batchwright.rundir import layout
from batchwright.rundir.storage import Storage

_RECEIPT = re.compile(r"(chunk-\d+-\d+)(?:\.(\d+))?\.json")


def remove_torn_files(storage: Storage) -> list[str]:
    """Remove receipts and the last stretch of the order where they are torn.

    A file is torn when it is empty, full of NUL bytes or cut in the middle of its JSON. A damaged
    stretch of the order that others follow is left alone: reading it says what is wrong. Objects
    are never torn.

    Returns:
        The paths that were removed.
    """
    if not storage.is_local:
        return []
    order = storage.names(layout.ORDER)
    removed = _remove_torn(storage, [f"{layout.ORDER}/{name}" for name in order[-1:]])
    removed += _remove_chunk_receipts(storage)
    prepared = _files(storage, layout.PREPARED)
    removed += _remove_torn(storage, prepared)
    return removed + _remove_without_part(storage, [one for one in prepared if one not in removed])


def _files(storage: Storage, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in storage.names(folder) if name.endswith(".json")]


def _remove_torn(storage: Storage, paths: list[str]) -> list[str]:
    torn = [path for path in paths if _is_torn(storage.read(path))]
    for path in torn:
        storage.delete(path)
    return torn


def _remove_chunk_receipts(storage: Storage) -> list[str]:
    """Torn receipts, and with each those of its chunk that came after it.

    Whoever takes the chunk reads its receipts up to the first that lacks: rows that a later one
    covers would be run and counted once more.
    """
    found = {}
    for name in storage.names(layout.RECEIPTS):
        if match := _RECEIPT.fullmatch(name):
            found[match[1], int(match[2] or 0)] = f"{layout.RECEIPTS}/{name}"
    first_torn: dict[str, int] = {}
    for (chunk, sequence), path in sorted(found.items()):
        if chunk not in first_torn and _is_torn(storage.read(path)):
            first_torn[chunk] = sequence
    removed = []
    # The last one first: a chunk that lacks one in the middle would be what this prevents.
    for (chunk, sequence), path in sorted(found.items(), reverse=True):
        if sequence >= first_torn.get(chunk, 1 << 62):
            storage.delete(path)
            removed.append(path)
    return removed


def _remove_without_part(storage: Storage, receipts: list[str]) -> list[str]:
    """Receipts of prepared parts that are gone. A part is there before its receipt, always."""
    removed = []
    for path in receipts:
        part = storage.local_path(path.removesuffix(".json") + ".arrow")
        if part is not None and not part.exists():
            storage.delete(path)
            removed.append(path)
    return removed


def _is_torn(raw: bytes) -> bool:
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError:
        return True
    return False
