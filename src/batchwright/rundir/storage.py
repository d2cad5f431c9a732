"""A run directory's files, in a local folder or an object store, by one small set of verbs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore

from batchwright.core.errors import StorageError


class Storage:
    """Files below one root, named by relative paths with `/`.

    Nothing is ever half visible: a file appears whole or not at all. `create` is the one atomic
    decision that several workers may race for; everything else builds on it.

    Args:
        root: a local folder; it is made if it does not exist.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).resolve()
        with _translated(f"cannot use {self.root} as a run directory"):
            self.root.mkdir(parents=True, exist_ok=True)
            self._store: Any = LocalStore(self.root)

    @property
    def location(self) -> str:
        """What another process of this run is told to find it by."""
        return str(self.root)

    def read(self, path: str) -> bytes:
        """The whole file. Raises StorageError if there is none."""
        with _translated(f"cannot read {self.root / path}"):
            return bytes(obstore.get(self._store, path).bytes())

    def read_if_there(self, path: str) -> bytes | None:
        """The whole file, or None."""
        try:
            return bytes(obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise _storage_error(f"cannot read {self.root / path}", error) from error

    def create(self, path: str, data: bytes) -> bool:
        """Write a file that must not exist yet; False if somebody else was first."""
        with _translated(f"cannot write {self.root / path}"):
            try:
                obstore.put(self._store, path, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
            return True

    def commit(self, path: str, data: bytes) -> bool:
        """Like `create`, and the file survives a power cut once this returns."""
        target = self.root / path
        with _translated(f"cannot write {target}"):
            target.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(prefix=".commit-", dir=target.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                # Linked only once its bytes are safe: a power cut leaves the whole file or none.
                os.link(temporary, target)
            except FileExistsError:
                return False
            finally:
                Path(temporary).unlink()
            _flush_folder(target.parent)
            return True

    def put(self, path: str, data: bytes) -> None:
        """Write or replace a file."""
        with _translated(f"cannot write {self.root / path}"):
            obstore.put(self._store, path, data)

    def publish(self, path: str, data: bytes) -> None:
        """Write a file that must survive a power cut once this returns."""
        self.put(path, data)
        with _translated(f"cannot write {self.root / path}"):
            with (self.root / path).open("rb") as file:
                os.fsync(file.fileno())
            _flush_folder((self.root / path).parent)

    def names(self, folder: str) -> list[str]:
        """Sorted names of the files directly in a folder; empty if there is no such folder."""
        with _translated(f"cannot list {self.root / folder}"):
            listing = obstore.list_with_delimiter(self._store, folder)
        names = (entry["path"].rsplit("/", 1)[-1] for entry in listing["objects"])
        return sorted(name for name in names if not name.startswith("."))

    def folders(self, folder: str) -> list[str]:
        """Sorted names of the folders directly in a folder; empty if there is no such folder."""
        with _translated(f"cannot list {self.root / folder}"):
            listing = obstore.list_with_delimiter(self._store, folder)
        return sorted(
            prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in listing["common_prefixes"]
        )

    def delete(self, path: str) -> None:
        """Remove a file; nothing happens if it is not there."""
        with _translated(f"cannot delete {self.root / path}"):
            try:
                obstore.delete(self._store, path)
            except FileNotFoundError:
                return

    def local_path(self, path: str) -> Path | None:
        """Where the file lies on this machine's disk, for memory maps and DuckDB."""
        return self.root / path

    def append(self, path: str, line: bytes) -> None:
        """Add one line to a log. Lines of several processes do not mix."""
        with _translated(f"cannot write {self.root / path}"):
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.root / path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                while line:  # a full disk or a signal may take it in pieces
                    line = line[os.write(descriptor, line) :]
            finally:
                os.close(descriptor)


def _flush_folder(folder: Path) -> None:
    """A name is safe only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError) as error:
        raise _storage_error(what, error) from error


def _storage_error(what: str, error: Exception) -> StorageError:
    reason = str(error)
    if "No space left" in reason or "StorageFull" in reason:
        hint = "The disk is full. Free some space and run the same command again: it goes on."
    elif "ermission denied" in reason or "Read-only" in reason:
        hint = "Choose a folder that you may write to (--dir, or run.dir in the job file)."
    else:
        hint = "Mend that and run the same command again: it goes on where it stopped."
    return StorageError(f"{what}: {reason.splitlines()[0]}", hint)
