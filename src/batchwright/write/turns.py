"""Whose turn it is to show results in a folder, where several processes export into it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batchwright.core.errors import StorageError

_STAGING = re.compile(r"\.staging-(\d+)(-\d+)?")
# In the hidden folder of each export, locked as long as its process lives.
_OWNER = ".owner"


class Turn:
    """One export into a folder: its number, and the hidden folder that its files are written in.

    Exports may run side by side. The one that began last stays: when it shows its files it removes the
    hidden folders of those before it, so that one whose process was stopped for a while shows nothing.
    The system drops the locks of a process that is gone, so none is ever left behind. Where a file
    system has no locks, exports into one folder must not run at the same time.

    Args:
        folder: of the results; it must exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with _locked(folder):
            for staging in _stagings(folder).values():
                if _is_abandoned(staging):
                    shutil.rmtree(staging, ignore_errors=True)
            self._number = max(_stagings(folder), default=0) + 1
            self.staging = folder / f".staging-{self._number}-{os.getpid()}"
            self.staging.mkdir()
            owner = os.open(self.staging / _OWNER, os.O_RDWR | os.O_CREAT, 0o666)
            self._close = weakref.finalize(self, os.close, owner)
            _lock(owner, fcntl.LOCK_EX)

    @contextmanager
    def showing(self) -> Iterator[None]:
        """While this export, and no other one, puts its files into the folder.

        Raises:
            StorageError: a later export has been shown meanwhile.
        """
        with _locked(self._folder):
            if not (self.staging / _OWNER).exists():
                raise StorageError(
                    f"another export into {self._folder} has ended meanwhile, and its files stay",
                    "Export to another folder (-o), or again when nobody else does.",
                )
            yield
            for number, staging in _stagings(self._folder).items():
                if number < self._number:
                    shutil.rmtree(staging, ignore_errors=True)

    def end(self) -> None:
        """Remove what was not shown."""
        shutil.rmtree(self.staging, ignore_errors=True)
        self._close()


def _stagings(folder: Path) -> dict[int, Path]:
    """The hidden folders of exports, by their numbers."""
    found = ((path, _STAGING.fullmatch(path.name)) for path in folder.iterdir())
    return {int(match[1]): path for path, match in found if match}


def _is_abandoned(staging: Path) -> bool:
    """Whether the process that wrote there is gone."""
    try:
        owner = os.open(staging / _OWNER, os.O_RDWR)
    except FileNotFoundError:  # of an earlier version, or being removed
        return True
    try:
        return _lock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(owner)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, how: int) -> bool:
    """Whether it is ours. Where there are no locks (folders on NFS), it is."""
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
