"""A run directory in a folder: writes that survive a power cut, and logs that several append to."""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore

from batchwright.core.errors import NotAllowed, StorageError

# What obstore is writing has such a name until it is whole.
_STAGED = re.compile(r"#\d+$")

# What a link is refused with on memory cards, Windows shares and buckets that are mounted as a folder.
_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}

CHOOSE = "Choose a folder that you may write to (--dir, or run.dir in the job file)."


class Disk:
    """The verbs of `Storage` on a local or shared folder.

    Args:
        root: it is made if it does not exist.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        what = f"cannot use {self.root} as a run directory"
        with translated(what):
            try:
                self.root.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
                raise NotAllowed(f"{what}: {error.strerror}", CHOOSE) from error
            self._store: Any = LocalStore(self.root)

    def read_if_there(self, path: str) -> bytes | None:
        """The whole file, or None."""
        with translated(f"cannot read {self.root / path}"):
            try:
                return bytes(obstore.get(self._store, path).bytes())
            except FileNotFoundError:
                return None

    def create(self, path: str, data: bytes) -> bool:
        """Write a file that must not exist yet; False if it does."""
        with translated(f"cannot write {self.root / path}"):
            try:
                obstore.put(self._store, path, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
            return True

    def commit(self, path: str, data: bytes) -> bool:
        """Like `create`, and the file survives a power cut once this returns."""
        target = self.root / path
        with translated(f"cannot write {target}"), _safe_bytes(target, data) as temporary:
            # Linked only once its bytes are safe: a power cut leaves the whole file or none.
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
                raise NotAllowed(
                    f"cannot use {self.root} as a run directory: its file system has no hard links",
                    f"{CHOOSE} The results may stay here: -o FOLDER, or output.path.",
                ) from error
            _flush_folder(target.parent)
            return True

    def put(self, path: str, data: bytes) -> None:
        """Write or replace a file."""
        with translated(f"cannot write {self.root / path}"):
            obstore.put(self._store, path, data)

    def send(self, path: str, file: Path) -> None:
        """Write or replace a file with the content of another."""
        self.publish(path, file.read_bytes())

    def publish(self, path: str, data: bytes) -> None:
        """Write or replace a file that must survive a power cut once this returns."""
        target = self.root / path
        with translated(f"cannot write {target}"), _safe_bytes(target, data) as temporary:
            # Renamed only once its bytes are safe: what was there before is there until then.
            temporary.replace(target)
            _flush_folder(target.parent)

    def marks(self, folder: str) -> dict[str, str]:
        """Names of the files directly in a folder, and what tells whether one has changed."""
        with translated(f"cannot list {self.root / folder}"):
            listing = obstore.list_with_delimiter(self._store, folder)
        return marks_by_name(listing["objects"])

    def names(self, folder: str, after: str, before: str) -> list[str]:
        """Sorted names of the files directly in a folder, of a range.

        The folder is read as a whole, but none of its files is looked at, as marks need it.
        """
        with translated(f"cannot list {self.root / folder}"):
            try:
                with os.scandir(self.root / folder) as entries:
                    found = [
                        one.name
                        for one in entries
                        if is_between(one.name, after, before)
                        and not _STAGED.search(one.name)
                        and one.is_file()
                    ]
            except (FileNotFoundError, NotADirectoryError):  # the same to an object store
                return []
        return sorted(found)

    def ask_again(self, folder: str) -> None:
        """See to it that files of others are seen now.

        A network file system may remember that a name was not there; to open its folder makes it ask.
        """
        with translated(f"cannot list {self.root / folder}"):
            try:
                os.close(os.open(self.root / folder, os.O_RDONLY))
            except FileNotFoundError:
                return

    def folders(self, folder: str) -> list[str]:
        """Sorted names of the folders directly in a folder."""
        with translated(f"cannot list {self.root / folder}"):
            listing = obstore.list_with_delimiter(self._store, folder)
        return folder_names(listing["common_prefixes"])

    def delete(self, path: str) -> None:
        """Remove a file; nothing happens if it is not there."""
        with translated(f"cannot delete {self.root / path}"):
            try:
                obstore.delete(self._store, path)
            except FileNotFoundError:
                return

    def append(self, path: str, line: bytes) -> None:
        """Add one line to a log. Lines of several processes do not mix."""
        with translated(f"cannot write {self.root / path}"):
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.root / path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                while line:  # a full disk or a signal may take it in pieces
                    line = line[os.write(descriptor, line) :]
            finally:
                os.close(descriptor)

    def read_log(self, path: str) -> bytes:
        """All lines that were appended."""
        return self.read_if_there(path) or b""

    def read_log_end(self, path: str, size: int) -> bytes:
        """Whole lines, from the last `size` bytes."""
        with translated(f"cannot read {self.root / path}"):
            try:
                with (self.root / path).open("rb") as file:
                    left_out = max(0, file.seek(0, os.SEEK_END) - size)
                    file.seek(max(0, left_out - 1))
                    data = file.read()
            except FileNotFoundError:
                return b""
        # From the byte before on, so that a line which begins right there is seen to be whole.
        return data.partition(b"\n")[2] if left_out else data

    def flush_logs(self) -> None:
        """Nothing is held back here."""


def folder_names(prefixes: Iterable[str]) -> list[str]:
    """Listed prefixes as sorted names."""
    return sorted(prefix.rstrip("/").rpartition("/")[2] for prefix in prefixes)


def marks_by_name(objects: Any) -> dict[str, str]:
    """Listed objects by name, sorted, without hidden ones."""
    names = {one["path"].rpartition("/")[2]: one for one in objects}
    return {
        name: str(names[name]["e_tag"] or names[name]["last_modified"])
        for name in sorted(names)
        if not name.startswith(".")
    }


def is_between(name: str, after: str, before: str) -> bool:
    """Whether a name lies behind one and ahead of another (empty: no end), and is not hidden."""
    return name > after and not (before and name >= before) and not name.startswith(".")


@contextmanager
def _safe_bytes(target: Path, data: bytes) -> Iterator[Path]:
    """A hidden file beside a target that holds its bytes, on the disk; gone afterwards.

    It has the rights that any new file gets here: who may read the folder may read the run.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".commit-{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """A name is safe only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Errors of a disk in plain words."""
    try:
        yield
    except (BaseError, OSError) as error:
        raise _storage_error(what, error) from error


def _storage_error(what: str, error: Exception) -> StorageError:
    reason = str(error)
    if "No space left" in reason or "StorageFull" in reason:
        hint = "The disk is full. Free some space and run the same command again: it goes on."
    elif "ermission denied" in reason or "Read-only" in reason:
        return NotAllowed(f"{what}: {reason.splitlines()[0]}", CHOOSE)
    else:
        hint = "Mend that and run the same command again: it goes on where it stopped."
    return StorageError(f"{what}: {reason.splitlines()[0]}", hint)
