"""A run directory in an object store: conditional puts, whole reads, logs in numbered pieces."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError

from batchwright.rundir.disk import folder_names, is_between, marks_by_name
from batchwright.rundir.stores import (
    FIRST_PATIENCE_S,
    PATIENCE_S,
    explained,
    is_missing_bucket,
    open_store,
    patiently,
)

# Objects cannot be appended to: lines of a log wait so long, or until there are so many bytes.
LOG_PIECE_S = 30.0
LOG_PIECE_BYTES = 1 << 20
LOG_READS_AT_ONCE = 16

# One request takes 5 GB at most; 10,000 pieces make an object.
LARGEST_WHOLE_BYTES = 1 << 30
PIECE_BYTES = 64 << 20

_PAGE = 1000

Found = TypeVar("Found")


class Bucket:
    """The verbs of `Storage` on an object store.

    Every object is written by one request (but for results files above 1 GiB, see `send`), so it is
    there as a whole or not at all, and no upload of several pieces is left behind half done.

    Args:
        address: `s3://bucket/folder`; nothing needs to be there.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._store = open_store(self.address)
        self._proved = False
        self._logs: dict[str, list[bytes]] = {}
        self._logged_at = 0.0
        self._log_lock = threading.Lock()
        self._writer = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._pieces = itertools.count()

    def read_if_there(self, path: str) -> bytes | None:
        """The whole object, or None."""

        def attempt() -> bytes | None:
            try:
                return self._get(path)
            except FileNotFoundError as error:
                if is_missing_bucket(error):
                    raise
                return None

        return self._try(f"cannot read {self.address}/{path}", attempt)

    def _get(self, path: str) -> bytes:
        found = obstore.get(self._store, path)
        size = found.meta["size"]
        data = bytes(found.bytes())
        if len(data) != size:
            raise GenericError(f"the answer broke off after {len(data)} of {size} bytes")
        return data

    def create(self, path: str, data: bytes) -> bool:
        """Write an object that must not exist yet; False if another one does.

        A request may do its work and lose its answer. What is there is then our own, and to take
        it for somebody else's would leave a claim that nobody knows to be theirs.
        """

        def attempt() -> bool:
            try:
                obstore.put(self._store, path, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return self._get(path) == data
            return True

        return self._try(f"cannot write {self.address}/{path}", attempt)

    def commit(self, path: str, data: bytes) -> bool:
        """The same: what an object store has acknowledged is safe."""
        return self.create(path, data)

    def put(self, path: str, data: bytes) -> None:
        """Write or replace an object."""
        self._try(
            f"cannot write {self.address}/{path}",
            lambda: obstore.put(self._store, path, data, use_multipart=False),
        )

    def send(self, path: str, file: Path) -> None:
        """Write or replace an object with the content of a file.

        Only a very large one is sent in pieces. Those of an upload that was killed stay invisible,
        but take room until a rule of the bucket (AbortIncompleteMultipartUpload) removes them.
        """
        if file.stat().st_size <= LARGEST_WHOLE_BYTES:
            self.put(path, file.read_bytes())
            return
        self._try(
            f"cannot write {self.address}/{path}",
            lambda: obstore.put(
                self._store, path, file, use_multipart=True, chunk_size=PIECE_BYTES
            ),
        )

    def publish(self, path: str, data: bytes) -> None:
        """The same: what an object store has acknowledged is safe."""
        self.put(path, data)

    def marks(self, folder: str) -> dict[str, str]:
        """Names of the objects directly in a folder, and what tells whether one has changed."""

        def attempt() -> list[Any]:
            return list(obstore.list_with_delimiter(self._store, folder)["objects"])

        return marks_by_name(self._try(f"cannot list {self.address}/{folder}", attempt))

    def names(self, folder: str, after: str, before: str) -> list[str]:
        """Sorted names of the objects directly in a folder, of a range: pages beyond it are not asked for."""
        if not (after or before):
            return list(self.marks(folder))

        def attempt() -> list[str]:
            inside = f"{folder}/" if folder else ""
            offset = inside + after if after else None
            found: list[str] = []
            for page in obstore.list(self._store, folder, offset=offset, chunk_size=_PAGE):
                found += [one["path"].removeprefix(inside) for one in page]
                if before and found and found[-1] >= before:
                    break
            direct = (name for name in found if "/" not in name)
            return sorted(name for name in direct if is_between(name, after, before))

        return self._try(f"cannot list {self.address}/{folder}", attempt)

    def folders(self, folder: str) -> list[str]:
        """Sorted names of the folders directly in a folder."""

        def attempt() -> list[str]:
            return list(obstore.list_with_delimiter(self._store, folder)["common_prefixes"])

        return folder_names(self._try(f"cannot list {self.address}/{folder}", attempt))

    def delete(self, path: str) -> None:
        """Remove an object; nothing happens if it is not there."""

        def attempt() -> None:
            try:
                obstore.delete(self._store, path)
            except FileNotFoundError:
                return

        self._try(f"cannot delete {self.address}/{path}", attempt)

    def append(self, path: str, line: bytes) -> None:
        """Add one line to a log; it is written a little later, together with others."""
        with self._log_lock:
            if not self._logs:
                self._logged_at = time.monotonic()
            lines = self._logs.setdefault(path, [])
            lines.append(line)
            held = sum(map(len, lines))
            due = time.monotonic() - self._logged_at > LOG_PIECE_S or held > LOG_PIECE_BYTES
        if due:
            self.flush_logs()

    def flush_logs(self) -> None:
        """Write the lines that wait, as an object of their own for each log."""
        with self._log_lock:
            waiting, self._logs = self._logs, {}
        try:
            for path in list(waiting):
                name = f"{next(self._pieces):06d}-{self._writer}.jsonl"
                self.put(f"{_folder_of_log(path)}/{name}", b"".join(waiting[path]))
                del waiting[path]
        finally:  # what could not be written waits for the next time
            with self._log_lock:
                for path, lines in waiting.items():
                    self._logs[path] = [*lines, *self._logs.get(path, [])]

    def read_log(self, path: str) -> bytes:
        """All lines that were written, those of each writer in their order."""
        folder = _folder_of_log(path)
        pieces = [f"{folder}/{name}" for name in self.marks(folder)]
        if len(pieces) < 2:
            return b"".join(self.read_if_there(one) or b"" for one in pieces)
        with ThreadPoolExecutor(min(LOG_READS_AT_ONCE, len(pieces))) as pool:  # 120 an hour
            return b"".join(found or b"" for found in pool.map(self.read_if_there, pieces))

    def read_log_end(self, path: str, size: int) -> bytes:
        """The newest pieces, of `size` bytes or somewhat more."""
        folder = _folder_of_log(path)
        pieces: list[bytes] = []
        for name in reversed(list(self.marks(folder))):
            pieces.append(self.read_if_there(f"{folder}/{name}") or b"")
            if sum(map(len, pieces)) >= size:
                break
        return b"".join(reversed(pieces))

    def _try(self, what: str, attempt: Callable[[], Found]) -> Found:
        with self._explained(what):
            found = patiently(attempt, PATIENCE_S if self._proved else FIRST_PATIENCE_S)
        self._proved = True
        return found

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            raise explained(what, error, self.address, proved=self._proved) from error


def _folder_of_log(path: str) -> str:
    return path.removesuffix(".jsonl")
