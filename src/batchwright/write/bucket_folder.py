"""Results in an object store: each file is made whole on a disk of this machine, then sent at once."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from batchwright.core.errors import StorageError
from batchwright.rundir.locations import Location
from batchwright.rundir.storage import Storage
from batchwright.write.folder import (
    MANIFEST,
    PREFIX,
    SUCCESS,
    files_named_by,
    scratch_in,
    storage_errors,
)


class ResultBucket:
    """A place in an object store. A file is there as a whole or not at all.

    Nothing can be renamed there: files of this export replace those of the same name while it is
    under way, and `_SUCCESS`, which is taken away first, says that the set is whole again.

    Args:
        address: `s3://bucket/folder`.
    """

    def __init__(self, address: str) -> None:
        self._storage = Storage(address)
        base = self._storage.local_folder("results")
        self._local = Path(tempfile.mkdtemp(prefix="export-", dir=base))
        self._sent: list[str] = []
        # Also of an export that fails nothing stays on this machine.
        weakref.finalize(self, shutil.rmtree, self._local, ignore_errors=True)
        self._before = self._storage.read_if_there(MANIFEST) or b""
        self._storage.delete(SUCCESS)

    def open(self, name: str) -> BinaryIO:
        """Begin a file on this machine's disk."""
        path = self._local / name
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("wb", buffering=2**20)

    def close(self, name: str, file: BinaryIO) -> None:
        """Send a file; then it takes no room here any more."""
        path = self._local / name
        with storage_errors(path):
            file.close()
        self._refuse_late()
        self._storage.send(name, path)
        self._sent.append(name)
        path.unlink()

    def publish(self, names: Sequence[str], marks: Mapping[str, bytes]) -> None:
        """Remove what an earlier export left beside these files, then write the marks."""
        self._refuse_late()
        there = {name for name in self._storage.names("") if name.startswith(PREFIX)}
        for name in (there | files_named_by(self._before)) - set(names):
            self._storage.delete(name)
        for name, content in marks.items():
            self._storage.put(name, content)
        self.abandon()

    def _refuse_late(self) -> None:
        """See that no other export has ended since this one began.

        A process that was stopped for a while may not know of rows that were run again meanwhile.
        """
        if (self._storage.read_if_there(MANIFEST) or b"") != self._before:
            raise StorageError(
                f"another export into {self._storage.location} has ended meanwhile, and its files stay",
                "Export to another folder (-o), or again when nobody else does.",
            )

    def abandon(self) -> None:
        """Remove what is on this machine."""
        shutil.rmtree(self._local, ignore_errors=True)

    def path(self, name: str) -> Location:
        """The address of a file."""
        return f"{self._storage.location}/{name}"

    def scratch(self) -> AbstractContextManager[Path]:
        """A folder on this machine's disk."""
        return scratch_in(self._local)
