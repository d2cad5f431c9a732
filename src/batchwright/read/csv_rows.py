"""CSV and TSV: real quoting, cells are text, one record per row."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import orjson

from batchwright.core.errors import InputError, RowError
from batchwright.core.records import RowBatch
from batchwright.read.batches import Row, gather
from batchwright.read.compression import Damaged, read_chunks

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_TSV = re.compile(r"\.(tsv|tab)(\.gz|\.zst)?$", re.IGNORECASE)

# Spreadsheets part cells by these too; all rows of such a file would be one column.
_OTHER_MARKS = (";", "\t", "|")

# How bytes that are not UTF-8 come out of `surrogateescape`.
_ESCAPED = re.compile("[\udc80-\udcff]")


def read_csv(path: str, batch_rows: int) -> Iterator[RowBatch]:
    """Rows of a whole CSV file."""
    return gather(_rows(path), batch_rows)


class _Chunks(io.RawIOBase):
    """The decompressed content as a stream."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        target = memoryview(buffer).cast("B")
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _rows(path: str) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    raw = io.BufferedReader(_Chunks(read_chunks(path)), 1 << 17)
    # surrogateescape: a byte that is not UTF-8 spoils its own row only.
    text = io.TextIOWrapper(raw, "utf-8-sig", errors="surrogateescape", newline="")
    with text:
        reader = csv.reader(text, delimiter="\t" if _TSV.search(path) else ",", strict=True)
        header = _header(path, reader)
        if header is not None:
            yield Row(1, reader.line_num)
            yield from _records(reader, header)


def _header(path: str, reader: Any) -> list[str] | None:
    cells: list[str] = []
    try:
        while not cells:
            cells = next(reader)
    except StopIteration:
        return None
    except csv.Error as error:
        raise InputError(f"{path}:1: bad header: {error}", "Correct the first line.") from error
    if _ESCAPED.search("".join(cells)):
        raise InputError(f"{path}:1: the header is not UTF-8", "Convert the file to UTF-8.")
    if len(cells) == 1 and any(mark in cells[0] for mark in _OTHER_MARKS):
        raise InputError(
            f"{path}:1: one column, named {cells[0]!r}: another mark than the comma parts its cells",
            "Write it with commas; with tabs, name it .tsv.",
        )
    for place, name in enumerate(cells, 1):
        if not name:
            raise InputError(f"{path}:1: column {place} has no name", "Name every column.")
        if name in cells[: place - 1]:
            raise InputError(f"{path}:1: two columns are named {name!r}", "Rename one of them.")
    return cells


def _records(reader: Any, header: list[str]) -> Iterator[Row]:
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "unexpected end of data" in str(error):
                raise Damaged(
                    f"a quote never closes in the record that begins at line {line}",
                    "Close the quote, or double the quotes within cells.",
                ) from error
            problem = RowError("bad_csv", f"{error}")
            yield Row(line, reader.line_num, problem=problem)
            continue
        yield _row(cells, header, line, reader.line_num)


def _row(cells: list[str], header: list[str], line: int, lines_read: int) -> Row:
    if len(cells) != len(header):
        if len(cells) <= 1 and not "".join(cells).strip():
            return Row(line, lines_read)
        message = f"the record has {len(cells)} cells, the header has {len(header)}"
        return Row(line, lines_read, problem=RowError("bad_csv", message))
    record = dict(zip(header, cells, strict=True))
    try:
        return Row(line, lines_read, record, orjson.dumps(record))
    except orjson.JSONEncodeError:
        bad = next(name for name, cell in record.items() if _ESCAPED.search(cell))
        problem = RowError("bad_unicode", f"column {bad!r} is not UTF-8")
        return Row(line, lines_read, problem=problem)
