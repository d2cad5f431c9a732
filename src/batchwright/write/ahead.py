"""Parts that are not on a disk, fetched a few ahead of where they are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

READS_AHEAD = 8


class PartStorage(Protocol):
    """What reading parts needs of a run directory."""

    def read(self, path: str) -> bytes:
        """The whole file. Raises StorageError."""

    def local_path(self, path: str) -> Path | None:
        """Where the file lies on this machine, or None."""


class ReadAhead:
    """Reads files in an order that is known: while one is worked on, the next ones come.

    Args:
        storage: where they are.
        files: in the order in which they will be read.
    """

    def __init__(self, storage: PartStorage, files: Iterable[str]) -> None:
        self._storage = storage
        self._files = deque(files)
        self._coming: dict[str, Future[bytes]] = {}
        self._pool = ThreadPoolExecutor(READS_AHEAD, thread_name_prefix="read-ahead")

    def read(self, path: str) -> bytes:
        """The whole file. Raises StorageError."""
        if self._storage.local_path(path) is not None:
            return self._storage.read(path)
        while self._files and len(self._coming) < READS_AHEAD:
            file = self._files.popleft()
            self._coming[file] = self._pool.submit(self._storage.read, file)
        coming = self._coming.pop(path, None)
        data = self._storage.read(path) if coming is None else coming.result()
        if not (self._files or self._coming):
            self._pool.shutdown(wait=False)
        return data

    def local_path(self, path: str) -> Path | None:
        """Where the file lies on this machine, or None."""
        return self._storage.local_path(path)
