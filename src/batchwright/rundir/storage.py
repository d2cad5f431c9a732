"""A run directory's files, in a folder or an object store, by one small set of verbs."""

from __future__ import annotations

import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from batchwright.core.errors import StorageError
from batchwright.core.ids import digest
from batchwright.rundir.bucket import Bucket
from batchwright.rundir.disk import Disk
from batchwright.rundir.locations import Location, is_address

# In an object store each look is a request, which takes its time and has its price.
SELDOMER = 4

# Requests under way at the same time when many small objects are read.
READS_AT_ONCE = 16

# Parts that several chunks lie in are kept in memory up to so many bytes, if they are not on a disk.
KEPT_BYTES = 192 << 20

SCRATCH_VARIABLE = "BATCHWRIGHT_SCRATCH"

Found = TypeVar("Found")


class Storage:
    """Files below one root, named by relative paths with `/`.

    Nothing is ever half visible: a file appears whole or not at all. `create` is the one atomic
    decision that several workers may race for; everything else builds on it.

    Args:
        location: a folder, which is made if it does not exist, or `s3://bucket/folder`.
    """

    def __init__(self, location: Location) -> None:
        self._disk: Disk | None = None
        if is_address(location):
            self._place: Disk | Bucket = Bucket(str(location))
            self.location = str(location).rstrip("/")
        else:
            self._place = self._disk = Disk(Path(location))
            self.location = str(self._disk.root)
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    @property
    def root(self) -> Path:
        """The folder; only for a run that is in one."""
        assert self._disk is not None, f"{self.location} is not a folder"
        return self._disk.root

    @property
    def is_local(self) -> bool:
        """Whether the run is in a folder of this machine, or one that it shares with others."""
        return self._disk is not None

    @property
    def place(self) -> Location:
        """The location, as a path where it is a folder."""
        return self.location if self._disk is None else self._disk.root

    def seldom(self, seconds: float) -> float:
        """How often to look at something that a disk can be asked for each `seconds`."""
        return seconds if self.is_local else SELDOMER * seconds

    def read(self, path: str) -> bytes:
        """The whole file. Raises StorageError if there is none."""
        found = self.read_if_there(path)
        if found is None:
            hint = "Put it back, or start again in another run directory."
            raise StorageError(f"cannot read {self.location}/{path}: there is no such file", hint)
        return found

    def read_if_there(self, path: str) -> bytes | None:
        """The whole file, or None."""
        return self._place.read_if_there(path)

    def read_each(self, paths: Sequence[str]) -> list[bytes]:
        """Many whole files, several at a time from an object store. Raises StorageError."""
        return self._each(self.read, paths)

    def read_awaited(self, paths: Sequence[str]) -> list[bytes | None]:
        """Files of known names that others are about to write; None for each that is not there yet.

        Where few are waited for this is cheaper than to list a folder of many.
        """
        if self._disk is not None:
            for folder in {path.rpartition("/")[0] for path in paths}:
                self._disk.ask_again(folder)
        return self._each(self.read_if_there, paths)

    def _each(self, read: Callable[[str], Found], paths: Sequence[str]) -> list[Found]:
        if self.is_local or len(paths) < 2:
            return [read(path) for path in paths]
        with ThreadPoolExecutor(min(READS_AT_ONCE, len(paths))) as pool:
            return list(pool.map(read, paths))

    def read_kept(self, path: str) -> bytes:
        """A file that never changes; the last few are kept in memory. Raises StorageError."""
        data = self._kept.pop(path, None)
        if data is None:
            data = self.read(path)
        self._kept[path] = data
        while sum(map(len, self._kept.values())) > KEPT_BYTES and len(self._kept) > 1:
            self._kept.popitem(last=False)
        return data

    def create(self, path: str, data: bytes) -> bool:
        """Write a file that must not exist yet; False if somebody else was first."""
        return self._place.create(path, data)

    def commit(self, path: str, data: bytes) -> bool:
        """Like `create`, and the file survives a power cut once this returns."""
        return self._place.commit(path, data)

    def put(self, path: str, data: bytes) -> None:
        """Write or replace a file."""
        self._place.put(path, data)

    def send(self, path: str, file: Path) -> None:
        """Write or replace a file with the content of one that lies on this machine."""
        self._place.send(path, file)

    def publish(self, path: str, data: bytes) -> None:
        """Write a file that must survive a power cut once this returns."""
        self._place.publish(path, data)

    def names(self, folder: str, after: str = "", before: str = "") -> list[str]:
        """Sorted names of the files directly in a folder; empty if there is no such folder.

        An object store lists no more than what is asked for, a page of 1,000 names for a request. A
        disk reads the whole folder each time.

        Args:
            folder: relative to the root.
            after: only names that come after this one.
            before: only names that come before this one; empty for all.
        """
        return self._place.names(folder, after, before)

    def marks(self, folder: str) -> dict[str, str]:
        """All of them, each with a mark that changes when the file does."""
        return self._place.marks(folder)

    def folders(self, folder: str) -> list[str]:
        """Sorted names of the folders directly in a folder; empty if there is no such folder."""
        return self._place.folders(folder)

    def delete(self, path: str) -> None:
        """Remove a file; nothing happens if it is not there."""
        self._place.delete(path)

    def local_path(self, path: str) -> Path | None:
        """Where the file lies on this machine's disk, for memory maps and DuckDB; None if it does not."""
        return None if self._disk is None else self._disk.root / path

    def local_folder(self, path: str) -> Path:
        """A folder of this machine for logs, and for what does not fit in memory.

        In the run directory if that is a folder, else below `BATCHWRIGHT_SCRATCH` or the machine's
        folder for temporary files.
        """
        own = self.local_path(path)
        if own is None:
            base = os.environ.get(SCRATCH_VARIABLE) or tempfile.gettempdir()
            own = Path(base) / f"batchwright-{os.getuid()}-{digest(self.location)[:12]}" / path
        own.mkdir(parents=True, exist_ok=True)
        return own

    def append(self, path: str, line: bytes) -> None:
        """Add one line to a log (`.jsonl`). Lines of several processes do not mix."""
        self._place.append(path, line)

    def read_log(self, path: str) -> bytes:
        """All lines of a log."""
        return self._place.read_log(path)

    def read_log_end(self, path: str, size: int) -> bytes:
        """The newest lines of a log: so many bytes of them, or somewhat more; whole lines only."""
        return self._place.read_log_end(path, size)

    def flush_logs(self) -> None:
        """Write the lines that an object store has not been given yet."""
        self._place.flush_logs()
