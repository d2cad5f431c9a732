"""Input files opened for reading, wherever they are."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, cast

from batchwright.rundir.locations import is_address
from batchwright.rundir.remote_file import RemoteFile


def open_bytes(path: str) -> BinaryIO:
    """A file of this machine, or an object, to read and to seek in.

    Raises:
        OSError: it is not there, or not readable.
        JobError, StorageError: see `RemoteFile`.
    """
    if is_address(path):
        # It reads ahead itself, and gives what is asked for.
        return cast("BinaryIO", RemoteFile(path))
    return Path(path).open("rb")
