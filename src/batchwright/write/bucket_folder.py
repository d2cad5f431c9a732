"""Results in an object store: each file is made whole on a disk of this machine, then sent at once."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import BinaryIO

from batchwright.rundir.storage import Storage
from batchwright.write.files import SUCCESS, ResultFolder


class ResultBucket(ResultFolder):
    """Like `ResultFolder`. A file is there as a whole or not at all.

    Args:
        address: `s3://bucket/folder`.
        suffix: of the files.
    """

    def __init__(self, address: str, suffix: str) -> None:
        self._storage = Storage(address)
        self._storage.delete(SUCCESS)
        base = self._storage.local_folder("results")
        folder = Path(tempfile.mkdtemp(prefix="export-", dir=base))
        super().__init__(folder, suffix)
        # Also of an export that fails nothing stays on this machine.
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    def finish(self, file: BinaryIO, name: str = "") -> None:
        """Send the file; then it takes no room here any more."""
        super().finish(file, name)
        path = self.finished.pop()
        assert isinstance(path, Path)
        self._storage.send(path.name, path)
        path.unlink()
        self.finished.append(f"{self._storage.location}/{path.name}")

    def succeed(self) -> None:
        """Remove what an earlier export left, and say that this one is whole."""
        sent = {str(address).rpartition("/")[2] for address in self.finished}
        for name in self._storage.names(""):
            if name.startswith("results-") and name not in sent:
                self._storage.delete(name)
        self._storage.put(SUCCESS, b"")
