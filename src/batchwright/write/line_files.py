"""Results in lines, JSON or CSV: plain, or compressed while they are written."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import zstandard

from batchwright.write.files import ResultFile, ResultFiles

SUFFIXES = {"none": "", "gzip": ".gz", "zstd": ".zst"}

_GZIP_LEVEL = 5
_ZSTD_LEVEL = 3


class LineWriter:
    """Rows to files of lines.

    Args:
        files: of the results.
        to_lines: rows of parts to lines.
        header: what every file begins with.
        target_bytes: a file is closed once it has this size, compressed.
        compression: `none`, `gzip` or `zstd`.
    """

    def __init__(
        self,
        files: ResultFiles,
        to_lines: Callable[[pa.Table], bytes],
        *,
        target_bytes: int,
        header: bytes = b"",
        compression: str = "none",
    ) -> None:
        self._files = files
        self._to_lines = to_lines
        self._header = header
        self._target_bytes = target_bytes
        self._compression = compression
        self._file: ResultFile | None = None
        self._sink: Any = None

    def add(self, part: pa.Table) -> None:
        """Write the next rows."""
        lines = self._to_lines(part)
        file = self._file or self._begin()
        self._sink.write(lines)
        file.rows += part.num_rows
        if file.tell() >= self._target_bytes:
            self._finish()

    def close(self) -> None:
        """Finish the last file; there is always at least one."""
        if self._file is None and not self._files.finished:
            self._begin()
        self._finish()

    def _begin(self) -> ResultFile:
        self._file = self._files.open()
        self._sink = _compressed(self._file, self._compression)
        self._sink.write(self._header)
        return self._file

    def _finish(self) -> None:
        if self._file is None:
            return
        if self._sink is not self._file:
            self._sink.close()
        self._files.finish(self._file)
        self._file = self._sink = None


def _compressed(file: ResultFile, compression: str) -> Any:
    if compression == "gzip":
        # Without a name and a time, equal rows give equal bytes. In blocks, because each call costs.
        packed = gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0)
        return io.BufferedWriter(packed, 2**18)
    if compression == "zstd":
        sink: Any = file  # it asks for a whole IO[bytes], and only writes
        return zstandard.ZstdCompressor(_ZSTD_LEVEL).stream_writer(sink, closefd=False)
    return file
