"""Bytes of a file, decompressed: gzip and zstd by content, all members and frames."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import BinaryIO, Protocol

import zstandard

from batchwright.core.errors import InputError
from batchwright.read.opening import open_bytes

BLOCK = 1 << 20

# Little enough that what one piece grows to fits in memory.
_PACKED_BLOCK = 1 << 17

_FOREIGN = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "a zip archive or an Excel workbook",
    b"7z\xbc\xaf\x27\x1c": "7-Zip",
    b"\x04\x22\x4d\x18": "lz4",
}


class Damaged(Exception):
    """The file breaks off or is broken here; what came before is good."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason, hint)
        self.reason = reason
        self.hint = hint


class _Member(Protocol):
    """One gzip member or zstd frame on its way out."""

    def decompress(self, data: bytes, /) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


def compression_of(path: str) -> str:
    """`gzip`, `zstd` or `` (none), by the file's first bytes and never by its name."""
    with open_bytes(path) as file:
        return _kind(path, file.read(8))


def _kind(path: str, magic: bytes) -> str:
    if magic.startswith(b"\x1f\x8b"):
        return "gzip"
    # The second is a skippable frame: parallel writers begin with one.
    if magic.startswith(b"\x28\xb5\x2f\xfd") or magic[1:4] == b"\x2a\x4d\x18":
        return "zstd"
    for start, name in _FOREIGN.items():
        if magic.startswith(start):
            raise InputError(
                f"{path}: this is {name}, which is not read",
                "Unpack it, or pack it again with gzip or zstd.",
            )
    return ""


def read_chunks(path: str, block_bytes: int = BLOCK) -> Iterator[bytes]:
    """The content of a file in blocks, decompressed. Raises Damaged where it breaks off."""
    with open_bytes(path) as file:  # once: in a bucket each opening is a request
        kind = _kind(path, file.read(8))
        file.seek(0)
        if kind:
            yield from _unpack(file, kind)
        else:
            while block := file.read(block_bytes):
                yield block


def _unpack(file: BinaryIO, kind: str) -> Iterator[bytes]:
    data = file.read(_PACKED_BLOCK)
    while data:
        member = _member(kind)
        while True:
            yield from _feed(member, data, kind)
            if member.eof:
                break
            data = file.read(_PACKED_BLOCK)
            if not data:
                raise Damaged(f"truncated {kind}", "Copy or write the file again.")
        data = _after_member(member.unused_data, file, kind)


def _member(kind: str) -> _Member:
    if kind == "gzip":
        return zlib.decompressobj(wbits=31)
    # Frames of `zstd --long` need more than the default window.
    return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()


def _feed(member: _Member, data: bytes, kind: str) -> Iterator[bytes]:
    try:
        block = member.decompress(data)
    except (zlib.error, zstandard.ZstdError) as error:
        raise Damaged(f"damaged {kind} ({error})", "Copy or write the file again.") from error
    if block:
        yield block


def _after_member(rest: bytes, file: BinaryIO, kind: str) -> bytes:
    """The start of the next member; empty at the end of the file.

    Like gzip(1), zero bytes after the last member are padding, and anything else is not.
    """
    rest = rest.lstrip(b"\0") if kind == "gzip" else rest
    while not rest:
        block = file.read(_PACKED_BLOCK)
        if not block:
            return b""
        rest = block.lstrip(b"\0") if kind == "gzip" else block
    if kind == "gzip" and not rest.startswith(b"\x1f"):
        raise Damaged("other data behind the gzip data", "Remove it, or write the file again.")
    return rest
