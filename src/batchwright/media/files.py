"""Reads images and sounds from files: regular ones, below an allowed folder, of a bounded size."""

from __future__ import annotations

import errno
import os
import stat

from batchwright.core.media import MediaLimits
from batchwright.media.problems import MediaProblem

_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a named pipe must not block


def read_file(path: str, limits: MediaLimits, *, head_bytes: int | None = None) -> bytes:
    """The content of a file; at most `head_bytes` of it where only its beginning is wanted.

    Raises:
        MediaProblem: with the code of what is wrong.
    """
    try:
        return _read(path, limits, head_bytes)
    except (FileNotFoundError, NotADirectoryError):
        raise MediaProblem("media_not_found", f"{path}: no such file") from None
    except PermissionError as error:
        raise MediaProblem("media_forbidden", f"{path}: {error.strerror}") from None
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL):
            raise MediaProblem("bad_media", f"{path[:200]}: {error.strerror}") from None
        message = f"{path}: {error.strerror or error}"
        raise MediaProblem("media_unreachable", message, may_pass=True) from None


def _read(path: str, limits: MediaLimits, head_bytes: int | None) -> bytes:
    real = os.path.realpath(path)
    check_root(real, limits)
    descriptor = os.open(real, _OPEN)
    with os.fdopen(descriptor, "rb") as file:
        # A folder may have become a link since: what was opened is what counts.
        opened = f"/proc/self/fd/{descriptor}"
        if os.path.lexists(opened):
            check_root(os.path.realpath(opened), limits)
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise MediaProblem("bad_media", f"{path} is no regular file")
        if head_bytes is not None:
            return file.read(head_bytes)
        if info.st_size > limits.max_bytes:
            raise MediaProblem(
                "media_too_large",
                f"{path}: {info.st_size} bytes; media.max_bytes is {limits.max_bytes}",
            )
        return file.read(limits.max_bytes)


def check_root(real: str, limits: MediaLimits) -> None:
    """Raise MediaProblem unless a path without links lies below an allowed folder."""
    for root in limits.allowed_roots:
        folder = os.path.realpath(root).rstrip("/")
        if real.startswith(f"{folder}/"):
            return
    raise MediaProblem(
        "media_forbidden", f"{real} lies in none of the folders that media.allowed_roots names"
    )
