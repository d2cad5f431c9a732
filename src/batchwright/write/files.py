"""Result files: numbered, counted and digested while they are written, listed in a manifest."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, Protocol

import orjson
import pyarrow as pa

from batchwright.rundir.locations import Location
from batchwright.write.folder import MANIFEST, PREFIX, SUCCESS, ResultStore, storage_errors

_MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What the manifest says of a file; `name` is relative to the folder."""

    name: str
    rows: int
    bytes: int
    sha256: str


class ResultFile(io.RawIOBase):
    """A file that is being written. The writer counts its rows, the file its bytes."""

    def __init__(self, name: str, path: Location, raw: BinaryIO) -> None:
        self.name = name
        self.raw = raw
        self.rows = 0
        self._path = path
        self._size = 0
        self._digest = hashlib.sha256()

    def writable(self) -> bool:
        """Always; pyarrow asks."""
        return True

    def tell(self) -> int:
        """Bytes written so far."""
        return self._size

    def write(self, data: Any) -> int:
        """Pass bytes on. Raises StorageError."""
        with storage_errors(self._path):
            self.raw.write(data)
        self._digest.update(data)
        size = memoryview(data).nbytes
        self._size += size
        return size

    @property
    def facts(self) -> FileFacts:
        """Of what has been written."""
        return FileFacts(self.name, self.rows, self._size, self._digest.hexdigest())


class ResultFiles:
    """The files of one export, in a store that shows them once all are there."""

    def __init__(self, store: ResultStore, suffix: str) -> None:
        self.store = store
        self.finished: list[FileFacts] = []
        self._suffix = suffix
        self._numbers: dict[str, int] = {}
        self._open: dict[str, ResultFile] = {}

    def open(self, *, folder: str = "", name: str = "") -> ResultFile:
        """Begin the next file of a folder below the results' own, or the one of this name."""
        if not name:
            number = self._numbers.get(folder, 0)
            self._numbers[folder] = number + 1
            name = f"{number:05d}"
        full = f"{folder}/" if folder else ""
        full += f"{PREFIX}{name}{self._suffix}"
        file = ResultFile(full, self.store.path(full), self.store.open(full))
        self._open[full] = file
        return file

    def finish(self, file: ResultFile) -> None:
        """End a file."""
        self.store.close(file.name, file.raw)
        self.finished.append(self._open.pop(file.name).facts)

    def abort(self) -> None:
        """Leave nothing of this export behind."""
        for file in self._open.values():
            # Closing flushes, and the disk may be full: the first error is the one to report.
            with suppress(OSError, ValueError):
                file.raw.close()
        self.store.abandon()

    def publish(self, about: Mapping[str, Any], success: bytes = b"") -> list[Location]:
        """Show the files.

        Args:
            about: what the manifest says ahead of the list of files.
            success: content of `_SUCCESS`.

        Returns:
            The files, in the order in which rows are read from them.
        """
        names = [facts.name for facts in self.finished]
        manifest = {
            "version": _MANIFEST_VERSION,
            **about,
            "rows": sum(facts.rows for facts in self.finished),
            "bytes": sum(facts.bytes for facts in self.finished),
            "files": [asdict(facts) for facts in self.finished],
        }
        text = orjson.dumps(manifest, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        self.store.publish(names, {MANIFEST: text, SUCCESS: success})
        return [self.store.path(name) for name in names]


class ResultWriter(Protocol):
    """Takes rows in order."""

    def add(self, part: pa.Table) -> None:
        """Write the next rows, which have the columns of a part."""

    def close(self) -> None:
        """Finish the last file."""
