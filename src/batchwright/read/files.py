"""Which files an input means: a file, a folder, a glob, or a list of those."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from batchwright.core.errors import InputError
from batchwright.core.records import SourceFile
from batchwright.read.opening import each_in_order
from batchwright.read.remote import expand_address, is_marker
from batchwright.rundir.locations import is_address
from batchwright.rundir.remote_file import find_object

_MAGIC = "*?["


def list_files(path: str | list[str]) -> list[SourceFile]:
    """Files meant by `path`, sorted by path, each once.

    Hidden files, names that begin with `_` and `.crc` files are left out of folders and globs;
    a file that is named itself is always taken.
    """
    asked = [path] if isinstance(path, str) else path
    if not asked:
        raise InputError("input.path is an empty list", "Name a file, a folder or a glob.")
    found: dict[str, SourceFile | str] = {}
    for entry in asked:
        if is_address(entry):
            found |= {file.path: file for file in expand_address(entry)}
            continue
        for name in _expand(entry):
            found.setdefault(str(Path(name).absolute()), name)
    files = sorted(found.values(), key=lambda file: file if isinstance(file, str) else file.path)
    return [_source(file) if isinstance(file, str) else file for file in files]


def _expand(entry: str) -> list[str]:
    path = Path(entry).expanduser()
    if path.is_dir():
        files = list(_walk(path, set()))
        if not files:
            raise InputError(f"{entry}: the folder holds no data files", "Check the path.")
        return files
    # A name with brackets may be a real file: only what does not exist is taken for a glob.
    if path.exists() or path.is_symlink():
        return [str(path)]
    if not any(char in entry for char in _MAGIC):
        raise InputError(
            f"{entry}: no such file or folder",
            f"Check the path; it is looked up from {Path.cwd()}.",
        )
    files = list(_glob(str(path)))
    if not files:
        raise InputError(f"{entry}: no file matches this pattern", "`**` matches folders below.")
    return files


def _walk(folder: Path, seen: set[str]) -> Iterator[str]:
    # Linked folders are followed, or their rows would be missing without a word; `seen` ends
    # the walk where links go round in a circle.
    real = os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}", "Make the folder readable.") from error
    for entry in entries:
        if is_marker(entry.name):
            continue
        if entry.is_dir():
            yield from _walk(entry, seen)
        else:
            yield str(entry)


def _glob(pattern: str) -> Iterator[str]:
    literal = set(Path(pattern).parts)
    # Path.glob takes no absolute pattern.
    for match in sorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207
        path = Path(match)
        if any(is_marker(part) for part in path.parts if part not in literal):
            continue
        if path.is_dir():
            yield from _walk(path, set())
        else:
            yield str(path)


def refuse_changed(files: Iterable[SourceFile]) -> None:
    """See that files are still those that a run began with.

    To be asked after they were read: whatever was done to one before then or meanwhile is seen.

    Args:
        files: as they were.

    Raises:
        InputError: one of them is another one now, or gone.
    """
    before = {file.path: file for file in files}
    for now in each_in_order(_look_again, list(before)):
        there = before[now.path]
        if (now.size, now.identity.strip('"')) == (there.size, there.identity.strip('"')):
            continue  # stores quote an etag in an answer, and not all of them in a listing
        grown = f"{there.size:,} bytes then, {now.size:,} now"
        how = grown if now.size != there.size else "its size is the same"
        raise InputError(
            f"{now.path} has changed since the run began ({how})",
            "Rows of both would be mixed. Bring the file back as it was, with its time of change, or start "
            "afresh in another run directory (--dir).",
        )


def _look_again(path: str) -> SourceFile:
    if not is_address(path):
        return _source(path)
    found = find_object(path)
    if found is None:
        raise InputError(f"{path}: there is no such object", "Bring it back, and run again.")
    return SourceFile(path, *found[1:])


def _source(path: str) -> SourceFile:
    if not _is_text(path):  # what is written of a run is UTF-8
        raise InputError(f"{path!a}: the name is not UTF-8", "Rename the file or folder.")
    try:
        info = Path(path).stat()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "Check the path and its links.") from error
    if not stat.S_ISREG(info.st_mode):
        raise InputError(f"{path}: not a regular file", "Write the data to a file first.")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path}: not readable", "Give this user the right to read it.")
    return SourceFile(path, info.st_size, str(info.st_mtime_ns))


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
