"""Where results go: the one interface that a folder, or a bucket, has to offer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

import orjson

from batchwright.core.errors import JobError, StorageError
from batchwright.rundir.locations import Location
from batchwright.write.turns import Turn

SUCCESS = "_SUCCESS"
# Hidden, because `load_dataset("parquet", data_dir=…)` takes every file that is not.
MANIFEST = ".manifest.json"
PREFIX = "results-"

_OLD_LEFTOVERS = (f".{PREFIX}*", ".sorting-*")

# What tells that a folder is the table of a lake, whose files are nobody else's business.
_TABLE_LOGS = {"_delta_log": "a Delta table", "_versions": "a Lance dataset"}


class ResultStore(Protocol):
    """Files by relative names with `/`. Readers see an export whole, or the one before it.

    A bucket cannot rename: there a file may be seen as soon as it is closed, under its own name,
    and `_SUCCESS` alone says that the set is whole.
    """

    def open(self, name: str) -> BinaryIO:
        """Begin a file. Raises StorageError."""

    def close(self, name: str, file: BinaryIO) -> None:
        """End a file: its content is safe once this returns. Raises StorageError."""

    def publish(self, names: Sequence[str], marks: Mapping[str, bytes]) -> None:
        """Put these files, all closed, in the place of what an earlier export left.

        Args:
            names: the files.
            marks: further small files; the last one says that all is there.
        """

    def abandon(self) -> None:
        """Remove what is not published."""

    def path(self, name: str) -> Location:
        """What people are told of a file."""

    def scratch(self) -> AbstractContextManager[Path]:
        """A local folder that is gone afterwards."""


@contextmanager
def storage_errors(path: Location) -> Iterator[None]:
    """Say which path a disk refused."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        hint = "Free some space, or choose a folder that you may write to, and export again."
        raise StorageError(f"cannot write {path}: {reason}", hint) from error


@contextmanager
def scratch_in(folder: Path) -> Iterator[Path]:
    """A folder for what has to be sorted, that is gone afterwards."""
    path = folder / "sorting"
    with storage_errors(path):
        path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class LocalFolder:
    """A folder of this machine. Files are written below a hidden folder and renamed at the end."""

    def __init__(self, folder: Path) -> None:
        refuse_tables(folder)
        self.folder = folder
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for pattern in _OLD_LEFTOVERS:
                for stale in folder.glob(pattern):
                    _remove(stale)
            self._turn = Turn(folder)
        self._staging = self._turn.staging

    def open(self, name: str) -> BinaryIO:
        """Begin a file below the hidden folder."""
        path = self._staging / name
        with storage_errors(self.path(name)):
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("wb", buffering=2**20)

    def close(self, name: str, file: BinaryIO) -> None:
        """End a file once its content is on the disk."""
        with storage_errors(self.path(name)):
            file.flush()
            os.fsync(file.fileno())
            file.close()

    def publish(self, names: Sequence[str], marks: Mapping[str, bytes]) -> None:
        """Remove what an earlier export left, rename the new files, then write the marks.

        Raises:
            StorageError: the disk refuses; or a later export has ended meanwhile.
        """
        with storage_errors(self.folder), self._turn.showing():
            # A disk that is full says so here, while the earlier export is still there.
            for name, content in marks.items():
                _write_safely(self._staging / name, content)
            (self.folder / SUCCESS).unlink(missing_ok=True)
            self._remove_earlier()
            for name in names:
                target = self.path(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                (self._staging / name).replace(target)
            for folder in {self.path(name).parent for name in names} | {self.folder}:
                _sync_folder(folder)
            for name in marks:
                (self._staging / name).replace(self.folder / name)
            _sync_folder(self.folder)
        self.abandon()

    def abandon(self) -> None:
        """Remove what is not published."""
        self._turn.end()

    def path(self, name: str) -> Path:
        """Where the file will be."""
        return self.folder / name

    def scratch(self) -> AbstractContextManager[Path]:
        """A folder on the disk of the results, which has to have room for them anyway."""
        return scratch_in(self._staging)

    def _remove_earlier(self) -> None:
        earlier = {path.name for path in self.folder.glob(f"{PREFIX}*") if path.is_file()}
        for name in earlier | _earlier_files(self.folder / MANIFEST):
            path = self.folder / name
            path.unlink(missing_ok=True)
            while (path := path.parent) != self.folder:
                with suppress(OSError):  # somebody's own file is in it
                    path.rmdir()


def refuse_tables(folder: Path) -> None:
    """Raises JobError for a folder that is a table of a lake: its log would not know our files."""
    for log, what in _TABLE_LOGS.items():
        if (folder / log).is_dir():
            raise JobError(f"{folder} holds {what}", "Choose another folder for the files (-o).")


def _earlier_files(manifest: Path) -> set[str]:
    try:
        return files_named_by(manifest.read_bytes())
    except OSError:  # there was no export
        return set()


def files_named_by(manifest: bytes) -> set[str]:
    """Files of the export that this manifest is of, if they are where an export puts files."""
    try:
        named = [str(one["name"]) for one in orjson.loads(manifest)["files"]]
    except (ValueError, KeyError, TypeError):  # not ours
        return set()
    paths = [PurePosixPath(name) for name in named]
    return {
        str(path)
        for path in paths
        if path.name.startswith(PREFIX) and all("=" in part for part in path.parts[:-1])
    }


def _write_safely(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
