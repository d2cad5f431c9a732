"""Which objects an input means: one, all below a folder, or those that a pattern matches."""

from __future__ import annotations

import re

from batchwright.core.errors import InputError
from batchwright.core.records import SourceFile
from batchwright.rundir.locations import split_address
from batchwright.rundir.remote_file import find_object, list_objects

_MAGIC = "*?["


def expand_address(address: str) -> list[SourceFile]:
    """The objects that an address means, sorted by name.

    Raises:
        InputError: there are none.
        JobError, StorageError: the bucket is missing, refuses the keys, or cannot be reached.
    """
    bucket, key = split_address(address)
    named = None if address.endswith("/") else find_object(address)
    if named is not None:
        return [SourceFile(*named)]
    has_magic = any(char in key for char in _MAGIC)
    folder = _fixed_folder(key) if has_magic else key
    found = list_objects(bucket, folder)
    if has_magic:
        pattern = _pattern(key)
        found = [one for one in found if pattern.fullmatch(one[0][len(bucket) + 1 :])]
    depth = len(bucket) + 1 + len(folder)
    files = [SourceFile(*one) for one in found if not _is_hidden(one[0][depth:], key)]
    if not files:
        raise _nothing(address, has_magic=has_magic)
    return sorted(files, key=lambda file: file.path)


def _nothing(address: str, *, has_magic: bool) -> InputError:
    if has_magic:
        return InputError(f"{address}: no object matches this pattern", "`**` matches folders.")
    return InputError(f"{address}: no such object or folder", "Check the name.")


def is_marker(name: str) -> bool:
    """Whether a name is bookkeeping (`_SUCCESS`, `.part.crc`), not data."""
    if name.endswith(".crc"):
        return True
    # `_year=2024` is a partition folder of data, as in Spark.
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _is_hidden(rest: str, key: str) -> bool:
    """Whether any part of a name that was not asked for is bookkeeping; or it is a folder's own."""
    asked = set(key.split("/"))
    parts = [part for part in rest.split("/") if part]
    return not parts or any(is_marker(part) for part in parts if part not in asked)


def _fixed_folder(key: str) -> str:
    """The folders of a pattern ahead of the first one with a wildcard."""
    fixed = []
    for part in key.split("/")[:-1]:
        if any(char in part for char in _MAGIC):
            break
        fixed.append(part)
    return "/".join(fixed)


def _pattern(key: str) -> re.Pattern[str]:
    """A glob as a regular expression; `*` stays within a folder, `**` matches any number of them."""
    parts = key.split("/")
    text = ""
    for place, part in enumerate(parts):
        last = place == len(parts) - 1
        if part == "**":
            text += ".*" if last else "(?:[^/]+/)*"
        else:
            text += _part_pattern(part) + ("" if last else "/")
    return re.compile(text, re.DOTALL)


def _part_pattern(part: str) -> str:
    pieces = re.split(r"(\*|\?|\[!?[^\]]+\])", part)
    known = {"*": "[^/]*", "?": "[^/]"}
    return "".join(
        known.get(piece)
        or (piece.replace("[!", "[^").replace("\\", r"\\") if piece[:1] == "[" and piece[-1:] == "]"
            else re.escape(piece))
        for piece in pieces
    )  # fmt: skip
