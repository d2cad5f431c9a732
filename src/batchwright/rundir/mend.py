"""After a power cut: drop the files that were being written, so that what they stood for is redone."""

from __future__ import annotations

import orjson

from batchwright.rundir import layout
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage


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
    removed += _remove_torn(storage, _files(storage, layout.RECEIPTS))
    # A prepared part that the order names would not be prepared again.
    state = RunState(storage)
    state.refresh_order()
    named = {
        layout.prepared_receipt(part.split, part.part)
        for batch in state.batches
        for part in batch.parts
    }
    loose = [path for path in _files(storage, layout.PREPARED) if path not in named]
    return removed + _remove_torn(storage, loose)


def _files(storage: Storage, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in storage.names(folder) if name.endswith(".json")]


def _remove_torn(storage: Storage, paths: list[str]) -> list[str]:
    torn = [path for path in paths if _is_torn(storage.read(path))]
    for path in torn:
        storage.delete(path)
    return torn


def _is_torn(raw: bytes) -> bool:
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError:
        return True
    return False
