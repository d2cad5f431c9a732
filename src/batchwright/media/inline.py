"""Images and sounds that a row itself holds: bytes, base64 and data URLs."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from batchwright.core.media import MediaLimits
from batchwright.media.problems import MediaProblem

# Gives what stands at a place of a row's own input; raises LookupError, TypeError or ValueError.
Find = Callable[[Sequence[str | int]], Any]

_WHITE_SPACE = b" \t\r\n"


def inline_bytes(find: Find, at: Sequence[str | int], limits: MediaLimits) -> bytes:
    """The content that stands at a place of a row's input.

    Args:
        find: gives what stands at a place.
        at: the place.
        limits: of the content.

    Raises:
        MediaProblem: `bad_media` or `media_too_large`.
    """
    try:
        value = find(at)
    except (LookupError, TypeError, ValueError):
        raise MediaProblem("bad_media", f"the row has nothing at {list(at)}") from None
    if isinstance(value, bytes):
        _check_size(len(value), limits)
        return value
    if not isinstance(value, str):
        raise MediaProblem("bad_media", f"the row has no bytes or base64 at {list(at)}")
    _check_size(len(value) * 3 // 4, limits)
    return _decoded(value)


def _decoded(text: str) -> bytes:
    if text[:5].lower() == "data:":
        text = text.partition(",")[2]
    try:
        packed = text.encode("ascii")
        if b"%" in packed:
            packed = unquote_to_bytes(packed)
        packed = packed.translate(None, _WHITE_SPACE)
        # The padding is often left off; what it would be follows from the length.
        return base64.b64decode(packed + b"=" * (-len(packed) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MediaProblem("bad_media", f"the row's base64 cannot be read: {error}") from None


def _check_size(size: int, limits: MediaLimits) -> None:
    if size > limits.max_bytes + 64:  # of a data URL's head
        raise MediaProblem(
            "media_too_large", f"about {size} bytes; media.max_bytes is {limits.max_bytes}"
        )
