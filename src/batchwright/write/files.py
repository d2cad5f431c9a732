"""Result files: closed at a target size, made whole before they get their name."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchwright.core.errors import StorageError
from batchwright.write.results import ResultShape
from batchwright.write.vectors import result_encoding

_ROW_GROUP_ROWS = 65_536
_ROW_GROUP_BYTES = 32 * 2**20

_SUCCESS = "_SUCCESS"
_PREFIX = "results-"
_SCRATCH_PREFIX = ".sorting-"


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Say which path a disk refused."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        hint = "Free some space, or choose a folder that you may write to, and export again."
        raise StorageError(f"cannot write {path}: {reason}", hint) from error


class ResultFolder:
    """The folder of the results: numbered files, and `_SUCCESS` once all of them are there."""

    def __init__(self, folder: Path, suffix: str) -> None:
        self.folder = folder
        self.finished: list[Path] = []
        self._suffix = suffix
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _SUCCESS).unlink(missing_ok=True)
            for stale in folder.glob(f".{_PREFIX}*"):
                stale.unlink()
            for stale in folder.glob(f"{_SCRATCH_PREFIX}*"):
                shutil.rmtree(stale)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder that is gone afterwards."""
        path = self.folder / f"{_SCRATCH_PREFIX}{os.getpid()}"
        with storage_errors(path):
            path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @property
    def next_path(self) -> Path:
        """Name of the numbered file that is being written, or comes next."""
        return self.path_of(f"{len(self.finished):05d}")

    def path_of(self, name: str) -> Path:
        """Path of a results file that is known by a name, in place of a number."""
        return self.folder / f"{_PREFIX}{name}{self._suffix}"

    def _temporary(self, name: str) -> tuple[Path, Path]:
        """Where a file is written, and where it will be; the next number if it has no name."""
        path = self.path_of(name) if name else self.next_path
        return self.folder / f".{path.name}", path

    def open(self, name: str = "") -> BinaryIO:
        """Begin the next file, or the one of this name, under a temporary name."""
        temporary, path = self._temporary(name)
        with storage_errors(path):
            return temporary.open("wb", buffering=2**20)

    def finish(self, file: BinaryIO, name: str = "") -> None:
        """Give the file its name, after its content is on the disk."""
        temporary, path = self._temporary(name)
        with storage_errors(path):
            file.flush()
            os.fsync(file.fileno())
            file.close()
            temporary.replace(path)
        self.finished.append(path)

    def discard(self, name: str = "") -> None:
        """Remove the file that was being written."""
        self._temporary(name)[0].unlink(missing_ok=True)

    def succeed(self) -> None:
        """Remove what an earlier export left, and say that this one is whole."""
        with storage_errors(self.folder):
            for path in self.folder.glob(f"{_PREFIX}*"):
                if path not in self.finished:
                    path.unlink()
            _sync_folder(self.folder)
            (self.folder / _SUCCESS).touch()
            _sync_folder(self.folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ResultWriter(Protocol):
    """Takes rows in order."""

    def add(self, part: pa.Table) -> None:
        """Write the next rows."""

    def close(self) -> None:
        """Finish the last file."""

    def abort(self) -> None:
        """Let go of the file in hand."""


class JsonlWriter:
    """Lines of JSON."""

    def __init__(self, folder: ResultFolder, shape: ResultShape, target_bytes: int) -> None:
        self._folder = folder
        self._shape = shape
        self._target_bytes = target_bytes
        self._file: BinaryIO | None = None
        self._written_bytes = 0

    def add(self, part: pa.Table) -> None:
        """Write the next rows."""
        lines = self._shape.to_lines(part)
        self._file = self._file or self._folder.open()
        with storage_errors(self._folder.next_path):
            self._file.write(lines)
        self._written_bytes += len(lines)
        if self._written_bytes >= self._target_bytes:
            self._finish()

    def close(self) -> None:
        """Finish the last file; there is always at least one."""
        if self._file is None and not self._folder.finished:
            self._file = self._folder.open()
        self._finish()

    def abort(self) -> None:
        """Let go of the file in hand."""
        close_quietly(self._file)
        self._folder.discard()

    def _finish(self) -> None:
        if self._file is not None:
            self._folder.finish(self._file)
        self._file, self._written_bytes = None, 0


class ParquetWriter:
    """Parquet files with row groups cut by row number and content only, never by memory layout."""

    def __init__(self, folder: ResultFolder, shape: ResultShape, target_bytes: int) -> None:
        self._folder = folder
        self._shape = shape
        self._target_bytes = target_bytes
        self._group_bytes_max = min(_ROW_GROUP_BYTES, target_bytes)
        self._group: list[pa.Table] = []
        self._group_bytes = 0
        self._group_rows = 0
        self._file: BinaryIO | None = None
        self._parquet: Any = None

    def add(self, part: pa.Table) -> None:
        """Take the next rows."""
        table = self._shape.to_table(part)
        self._group.append(table)
        self._group_rows += table.num_rows
        self._group_bytes += sum(content_bytes(column) for column in table.columns)
        if self._group_rows >= _ROW_GROUP_ROWS or self._group_bytes >= self._group_bytes_max:
            self._write_group()

    def close(self) -> None:
        """Finish the last file; there is always at least one."""
        if self._group or not (self._folder.finished or self._parquet):
            self._write_group()
        self._finish()

    def abort(self) -> None:
        """Let go of the file in hand."""
        close_quietly(self._parquet)
        close_quietly(self._file)
        self._folder.discard()

    def _write_group(self) -> None:
        # One chunk per column, because page borders follow chunk borders.
        tables = self._group or [self._shape.schema.empty_table()]
        table = pa.concat_tables(tables).combine_chunks()
        self._group, self._group_rows, self._group_bytes = [], 0, 0
        with storage_errors(self._folder.next_path):
            if self._file is None:
                self._file = self._folder.open()
                self._parquet = pq.ParquetWriter(
                    self._file,
                    self._shape.schema,
                    compression="zstd",
                    compression_level=1,
                    **result_encoding(self._shape.schema),
                )
            self._parquet.write_table(table, row_group_size=max(table.num_rows, 1))
            written_bytes = self._file.tell()
        if written_bytes >= self._target_bytes:
            self._finish()

    def _finish(self) -> None:
        if self._file is None:
            return
        with storage_errors(self._folder.next_path):
            self._parquet.close()
        self._folder.finish(self._file)
        self._file = self._parquet = None


def close_quietly(file: Any) -> None:
    """Close a file of which nothing is wanted any more."""
    # Closing flushes, and the disk may be full: the first error is the one to report.
    if file is not None:
        try:
            file.close()
        except (OSError, ValueError):
            return


def content_bytes(column: Any) -> int:
    """Bytes of the values themselves: the same for equal columns, however they lie in memory."""
    kind = column.type
    if pa.types.is_struct(kind):
        return sum(content_bytes(child) for child in column.flatten())
    if pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type):
        return len(column) * int(kind.list_size * kind.value_type.bit_width // 8)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return 4 * len(column) + content_bytes(pc.list_flatten(column))
    if _has_length(kind):
        return 4 * len(column) + (pc.sum(pc.binary_length(column)).as_py() or 0)
    return 8 * len(column)


def _has_length(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string)
    return any(test(kind) for test in (*tests, pa.types.is_binary, pa.types.is_large_binary))


def check_writable(folder: Path) -> None:
    """Find out now, not after hours, that the results cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StorageError(
            f"the results cannot be written to {folder}: {error.strerror}",
            "Choose another folder: -o FOLDER, or output.path in the job file.",
        ) from error
