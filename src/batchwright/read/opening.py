"""Input files opened for reading, wherever they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from batchwright.rundir.locations import is_address
from batchwright.rundir.remote_file import RemoteFile

# Objects that are fetched at the same time, where there are many: each is a wait for the network.
_AT_ONCE = 16

Found = TypeVar("Found")


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


def each_in_order(work: Callable[[str], Found], paths: Sequence[str]) -> Iterator[Found]:
    """What `work` makes of each file, in order; several objects of a bucket at a time.

    Raises:
        BatchwrightError: whatever `work` raises, after what it made of the files before.
    """
    if len(paths) < 2 or not any(map(is_address, paths)):
        yield from map(work, paths)
        return
    pool = ThreadPoolExecutor(_AT_ONCE, "fetch")
    try:
        yield from pool.map(work, paths)
    finally:
        pool.shutdown(cancel_futures=True)
