"""JSON lines: split on LF bytes, in byte ranges that cover each line exactly once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import orjson

from batchwright.core.errors import RowError
from batchwright.core.records import RowBatch
from batchwright.read.batches import json_array
from batchwright.read.compression import BLOCK, read_chunks
from batchwright.read.opening import open_bytes

BOM = b"\xef\xbb\xbf"

# orjson makes floats of integers beyond 64 bit: -9223372036854775809 has 19 digits, 2**64 has 20.
_LONG_NUMBER = re.compile(rb"-[0-9]{19}|[0-9]{20}")
_ZEROS = bytes(ord("0") if chr(code).isdigit() and code < 128 else code for code in range(256))

_KINDS = {list: "a list", str: "text", bool: "a boolean", type(None): "null"}


def read_jsonl(path: str, start: int, stop: int, batch_rows: int) -> Iterator[RowBatch]:
    """Rows of the lines that begin in [start, stop); the whole file when `stop` is -1."""
    chunks = read_chunks(path) if stop < 0 else _range_chunks(path, start, stop)
    line = 1
    for block in whole_lines(chunks):
        lines = block.split(b"\n")
        if b"\r" in block:
            lines = [text.removesuffix(b"\r") for text in lines]
        long_numbers = _may_hold_long_numbers(block)
        for at in range(0, len(lines), batch_rows):
            piece = lines[at : at + batch_rows]
            yield _batch(piece, line, long_numbers=long_numbers)
            line += len(piece)


def whole_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Blocks of whole lines, without the last LF of each block."""
    begun: list[bytes] = []
    for chunk in chunks:
        cut = chunk.rfind(b"\n")
        if cut < 0:
            begun.append(chunk)
            continue
        begun.append(chunk[:cut])
        yield b"".join(begun)
        begun = [chunk[cut + 1 :]]
    if last := b"".join(begun):
        yield last


def parse_object(line: bytes) -> tuple[dict[str, Any] | None, RowError | None]:
    """The object on a line, and what is wrong with its text; see `mended`. Raises RowError."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return mended(checked_object(_parse_exactly(line)))
    if _LONG_NUMBER.search(line):
        value = _parse_exactly(line)
    return checked_object(value), None


def checked_object(value: Any) -> dict[str, Any]:
    """The value, if it is an object. Raises RowError."""
    if isinstance(value, dict):
        return value
    kind = _KINDS.get(type(value), "a number")
    raise RowError("not_an_object", f"expected a JSON object, found {kind}")


def mended(record: dict[str, Any]) -> tuple[dict[str, Any] | None, RowError | None]:
    """The record, and what is wrong if a text within holds half of a surrogate pair.

    Such a row cannot run, but its other fields, the id first of all, say which one it is: they are
    kept, with U+FFFD for the half. There is no record if a column's name is broken.
    """
    text = json.dumps(record, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        bad = error.object[error.start]
        problem = RowError("bad_unicode", f"lone surrogate U+{ord(bad):04X} in the text")
        clean = json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
        return (clean if clean.keys() == record.keys() else None), problem
    return record, None


def _parse_exactly(line: bytes) -> Any:
    # Slower than orjson, but takes NaN and Infinity and keeps every digit of an integer.
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        message = f"byte {error.start + 1} of the line is not UTF-8"
        raise RowError("bad_unicode", message) from error
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise RowError("bad_json", _why(text, error)) from error
    except RecursionError as error:
        raise RowError("bad_json", "nested too deeply") from error
    except ValueError as error:
        raise RowError("bad_json", f"{error}") from error
    return value


def _why(text: str, error: json.JSONDecodeError) -> str:
    if error.msg == "Extra data":
        return f"extra data after the object at column {error.pos + 1}"
    if text.lstrip()[:1] in ("{", "[") and error.pos >= len(text.rstrip()):
        return "the line ends before the object does: cut off, or pretty-printed JSON?"
    return f"{error.msg} at column {error.pos + 1}"


def _batch(lines: list[bytes], first: int, *, long_numbers: bool) -> RowBatch:
    num_lines = first + len(lines) - 1
    if not long_numbers:
        try:
            records = list(map(orjson.loads, lines))
        except orjson.JSONDecodeError:
            pass
        else:
            if set(map(type, records)) == {dict}:
                numbers = list(range(first, num_lines + 1))
                return RowBatch(records, json_array(lines), numbers, {}, num_lines)
    return _careful_batch(lines, first)


def _careful_batch(lines: list[bytes], first: int) -> RowBatch:
    records: list[dict[str, Any] | None] = []
    kept: list[bytes | None] = []
    numbers: list[int] = []
    problems: dict[int, tuple[str, str]] = {}
    for number, raw in enumerate(lines, first):
        # Files joined with `cat` have a byte order mark on lines other than the first.
        line = raw.removeprefix(BOM)
        if not line.strip():
            continue
        numbers.append(number)
        try:
            record, problem = parse_object(line)
        except RowError as error:
            record, problem = None, error
        if problem is not None:
            problems[len(records)] = (problem.code, problem.message)
        records.append(record)
        kept.append(None if record is None else line)
    return RowBatch(records, json_array(kept), numbers, problems, first + len(lines) - 1)


def _may_hold_long_numbers(block: bytes) -> bool:
    # Much faster than the regular expression, which then looks at each line of few blocks.
    zeros = block.translate(_ZEROS)
    return b"0" * 20 in zeros or b"-" + b"0" * 19 in zeros


def _range_chunks(path: str, start: int, stop: int) -> Iterator[bytes]:
    with open_bytes(path) as file:
        begin = _line_start(file, start)
        end = _line_start(file, stop)
        file.seek(begin)
        while begin < end:
            block = file.read(min(BLOCK, end - begin))
            if not block:
                return
            begin += len(block)
            yield block


def _line_start(file: BinaryIO, offset: int) -> int:
    """Where the first line begins that does not begin before `offset`."""
    if offset == 0:
        return 0
    at = offset - 1
    file.seek(at)
    size = 1 << 12
    while block := file.read(size):
        found = block.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(block)
        size = BLOCK
    return at
