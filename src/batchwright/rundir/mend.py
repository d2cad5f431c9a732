"""After a power cut: drop the files that were being written, so that what they stood for is redone."""

from __future__ import annotations

import orjson

from batchwright.rundir import layout
from batchwright.rundir.storage import Storage


def remove_torn_files(storage: Storage) -> list[str]:
    """Remove receipts and the last stretch of the order where they are torn.

    A file is torn when it is empty, full of NUL bytes or cut in the middle of its JSON. A damaged
    stretch of the order that others follow is left alone: reading it says what is wrong.

    Returns:
        The paths that were removed.
    """
    order = storage.names(layout.ORDER)
    paths = [f"{layout.ORDER}/{order[-1]}"] if order else []
    for folder in (layout.PREPARED, layout.RECEIPTS):
        paths += [f"{folder}/{name}" for name in storage.names(folder) if name.endswith(".json")]
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
