"""Which format an input has, by name and content; refuses what would fail at every row."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import orjson

from batchwright.core.errors import InputError
from batchwright.core.records import SourceFile
from batchwright.read.compression import Damaged, compression_of, read_chunks
from batchwright.read.jsonl import BOM
from batchwright.read.opening import each_in_order

_NAMES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".tab": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".json": "json",
}
_EXTENSION = re.compile(r"(\.[a-z]+)(\.gz|\.zst|\.zstd)?$")

_HEAD = 1 << 16

# Enough to hold the first line of nearly any file.
_LONGEST_HEAD = 1 << 24


def detect_format(files: Sequence[SourceFile], asked: str) -> str:
    """`jsonl`, `csv`, `parquet`, `json` or `openai-batch`, checked against the content."""
    first: dict[str, tuple[str, bytes]] = {}
    paths = [file.path for file in files if file.size]
    for path, head in zip(paths, each_in_order(_head, paths), strict=True):
        first.setdefault(_format_of(path, head, asked), (path, head))
    if not first:
        named = _by_name(files[0].path) if files else ""
        return (named or "jsonl") if asked == "auto" else asked
    if len(first) > 1:
        (one, (path, _)), (other, (other_path, _)) = list(first.items())[:2]
        raise InputError(
            f"the input mixes formats: {path} is {one}, {other_path} is {other}",
            "Give input.path a glob that matches the files of one format, such as data/*.jsonl.",
        )
    found, (_, head) = first.popitem()
    if asked == "auto" and found == "jsonl" and _is_openai_batch(head):
        return "openai-batch"
    return found if asked == "auto" else asked


def _head(path: str) -> bytes:
    """The beginning of the content, with two lines in it if possible."""
    head = b""
    try:
        for chunk in read_chunks(path, _HEAD):
            head += chunk
            if len(_first_lines(head)) == 2 or len(head) >= _LONGEST_HEAD:
                break
    except Damaged:
        # Reading will say where, after the rows before it.
        pass
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "Make the file readable.") from error
    return head.removeprefix(BOM)


def _first_lines(head: bytes) -> list[bytes]:
    return [line for line in head.split(b"\n") if line.strip()][:2]


def _by_name(path: str) -> str:
    match = _EXTENSION.search(path.lower())
    return _NAMES.get(match[1], "") if match else ""


def _format_of(path: str, head: bytes, asked: str) -> str:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path}: this is UTF-16 text", "Convert the file to UTF-8.")
    known = "jsonl" if asked == "openai-batch" else asked
    found = _guess(path, head) if asked == "auto" else known
    if (found == "parquet") != head.startswith(b"PAR") and head:
        is_not = "this is not a Parquet file" if found == "parquet" else "this is a Parquet file"
        raise InputError(f"{path}: {is_not}", "Correct input.path or input.format.")
    if found == "parquet" and compression_of(path):
        raise InputError(f"{path}: a compressed Parquet file", "Unpack it; Parquet has its own.")
    if found == "jsonl":
        _check_lines(path, head)
    return found


def _guess(path: str, head: bytes) -> str:
    if head.startswith(b"PAR1"):
        return "parquet"
    named = _by_name(path)
    if named in ("csv", "parquet"):
        return named
    start = head.lstrip()[:1]
    if start in (b"[", b"{") and _is_lines(head):
        return "jsonl"
    if start == b"[" or named == "json":
        return "json"
    if start == b"{" or named == "jsonl":
        return "jsonl"
    raise InputError(
        f"{path}: cannot tell the format of this file",
        "Set input.format, or leave the file out with a glob such as data/*.jsonl.",
    )


def _check_lines(path: str, head: bytes) -> None:
    if head.lstrip()[:1] == b"[" and not _is_lines(head):
        raise InputError(
            f"{path}: JSON array, expected one object per line", "Set input.format to json."
        )
    if _is_pretty(head):
        raise InputError(
            f"{path}: pretty-printed JSON, expected one object per line",
            f"Write each object on one line: jq -c . {path}",
        )


def _is_lines(head: bytes) -> bool:
    """Whether the first of several lines is a whole JSON value."""
    lines = _first_lines(head)
    return len(lines) == 2 and _parses(lines[0])


def _parses(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


def _is_pretty(head: bytes) -> bool:
    first, _, rest = head.lstrip().partition(b"\n")
    if not rest.strip() or _parses(first):
        return False
    if first.strip() == b"{":
        return rest.lstrip()[:1] in (b'"', b"}")
    text = head.decode(errors="replace").lstrip()
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return "\n" in text[:end]


def _is_openai_batch(head: bytes) -> bool:
    for line in _first_lines(head):
        if _parses(line):
            row = orjson.loads(line)
            return (
                isinstance(row, dict)
                and "custom_id" in row
                and ("body" in row or {"method", "url"} <= row.keys())
            )
    return False
