"""A JSON array of objects, element by element, without holding the file in memory."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

from batchwright.core.errors import InputError, RowError
from batchwright.core.records import RowBatch
from batchwright.read.batches import Row, gather
from batchwright.read.compression import BLOCK, Damaged, read_chunks
from batchwright.read.jsonl import checked_object, mended

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
_LAYOUT = re.compile(r"[ \t]*[\r\n][ \t\r\n]*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

# An error this near to the end of what is read may be a token that is only half there.
_LONGEST_TOKEN = 16

_HINT = "Correct the file; one damaged place hides the rows behind it."
_ARRAY_HINT = "If the file holds one object per line, set input.format to jsonl."


def read_json_array(path: str, batch_rows: int) -> Iterator[RowBatch]:
    """Rows of a whole file that holds one array."""
    return gather(_rows(path), batch_rows)


class _Text:
    """A window on the text that moves forward; `line` is where `at` is."""

    def __init__(self, path: str) -> None:
        self._chunks = read_chunks(path)
        # surrogateescape: a byte that is not UTF-8 spoils its own row only.
        decoder = codecs.getincrementaldecoder("utf-8-sig")
        self._decoder = decoder(errors="surrogateescape")
        self.text = ""
        self.at = 0
        self.line = 1
        self.ended = False
        self._damage: Damaged | None = None

    def more(self) -> None:
        """Drop what is behind and read on: at least as much as is here, to retry seldom."""
        pieces = [self.text[self.at :]]
        wanted = max(BLOCK, len(pieces[0]))
        while wanted > 0 and not self.ended:
            chunk = self._next_chunk(first=len(pieces) == 1)
            if chunk is None:
                break
            self.ended = not chunk
            pieces.append(self._decoder.decode(chunk, self.ended))
            wanted -= len(pieces[-1])
        self.text = "".join(pieces)
        self.at = 0

    def _next_chunk(self, *, first: bool) -> bytes | None:
        """Empty at the end; None where the file breaks off behind text that is to be read yet."""
        try:
            if self._damage is None:
                return next(self._chunks, b"")
        except Damaged as error:
            self._damage = error
            if not first:
                return None
        raise self._damage

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            self.move(_SPACE.match(self.text, self.at).end())  # type: ignore[union-attr]
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            self.more()

    def move(self, to: int) -> None:
        """Go on to position `to` of the window."""
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def take(self) -> tuple[Any, str]:
        """The next value and its text."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                if self.ended or not self._half_there(error):
                    raise self.damaged(error.msg, error.pos) from error
            except (ValueError, RecursionError) as error:
                raise self.damaged(str(error), self.at) from error
            else:
                # A number at the end of the window may go on behind it.
                if end < len(self.text) or self.ended:
                    text = self.text[self.at : end]
                    self.move(end)
                    return value, text
            self.more()

    def _half_there(self, error: json.JSONDecodeError) -> bool:
        near_end = error.pos >= len(self.text) - _LONGEST_TOKEN
        return near_end or error.msg.startswith("Unterminated string")

    def damaged(self, what: str, at: int) -> Damaged:
        """The error that names the line of position `at`."""
        if at >= len(self.text) and self.ended:
            what = "the file ends inside the array"
        line = self.line + self.text.count("\n", self.at, at)
        return Damaged(f"damaged JSON at line {line} ({what})", _HINT)


def _rows(path: str) -> Iterator[Row]:
    text = _Text(path)
    first = text.peek()
    if not first:
        return
    if first != "[":
        raise InputError(f"{path}: expected an array of objects, found {first!r}", _ARRAY_HINT)
    text.move(text.at + 1)
    if text.peek() == "]":
        text.move(text.at + 1)
    else:
        yield from _elements(text)
    if text.peek():
        raise text.damaged("extra data after the array", text.at)
    yield Row(text.line, text.line)


def _elements(text: _Text) -> Iterator[Row]:
    while True:
        text.peek()
        line = text.line
        value, source = text.take()
        yield _row(value, source, line, text.line)
        mark = text.peek()
        if mark not in (",", "]"):
            raise text.damaged("expected , or ] after an element", text.at)
        text.move(text.at + 1)
        if mark == "]":
            return


def _row(value: Any, source: str, line: int, lines_read: int) -> Row:
    try:
        # Line ends cannot stand within JSON strings: taking them out changes no value, and the
        # digits of numbers stay as they were written.
        kept = _LAYOUT.sub("", source).encode()
        found = checked_object(value)
        if not _SURROGATE.search(source):
            return Row(line, lines_read, found, kept)
        record, bad = mended(found)
        return Row(line, lines_read, record, None if record is None else kept, bad)
    except UnicodeEncodeError:
        problem = RowError("bad_unicode", "the object is not UTF-8")
    except RowError as error:
        problem = error
    return Row(line, lines_read, problem=problem)
