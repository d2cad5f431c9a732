"""What an image or a sound is by its own content: its type, its size, whether it can be opened."""

from __future__ import annotations

import importlib.util
import io
import wave
from functools import cache
from typing import Any

from batchwright.core.errors import MissingExtra
from batchwright.core.media import Media, MediaKind, MediaLimits, sniff_type
from batchwright.media.problems import MediaProblem

# What opening a damaged file raises, in Pillow's plugins and in `wave`.
_DAMAGED = (OSError, EOFError, SyntaxError, ValueError, ArithmeticError, LookupError, TypeError,
            wave.Error, RuntimeError)  # fmt: skip


def check_media(kind: MediaKind, data: bytes, limits: MediaLimits, name: str) -> Media:
    """The content as an engine gets it, once it is known to be allowed.

    An image's header is read, not its pixels: they are decoded once, where they are needed.

    Args:
        kind: what the row says it is.
        data: the content, encoded.
        limits: of types, pixels and seconds.
        name: for messages.

    Raises:
        MediaProblem: `bad_media` or `media_too_large`.
    """
    if not data:
        raise MediaProblem("bad_media", f"{name} is empty")
    found = sniff_type(data)
    if found is None:
        shown = data[:16]
        raise MediaProblem("bad_media", f"{name} begins with {shown!r}: no known image or sound")
    if not found.startswith(kind):
        raise MediaProblem("bad_media", f"{name} is {found}, the row says {kind}")
    if found not in limits.allowed_types:
        raise MediaProblem("bad_media", f"{name} is {found}; media.allowed_types does not name it")
    if kind == "image":
        width, height = image_size(data, name)
        if width * height > limits.max_pixels:
            raise MediaProblem(
                "media_too_large",
                f"{name}: {width} x {height} pixels; media.max_pixels is {limits.max_pixels}",
            )
    else:
        _check_seconds(found, data, limits, name)
    return Media(kind, found, data)


def image_size(data: bytes, name: str) -> tuple[int, int]:
    """Width and height by an image's header. Raises MediaProblem if it cannot be opened."""
    pillow = _pillow()
    try:
        with pillow.open(io.BytesIO(data)) as image:
            width, height = image.size
    except _DAMAGED as error:
        raise MediaProblem("bad_media", f"{name} cannot be opened: {error}") from None
    if width < 1 or height < 1:
        raise MediaProblem("bad_media", f"{name} has {width} x {height} pixels")
    return int(width), int(height)


@cache
def _pillow() -> Any:
    """Pillow's Image, all of its formats loaded: done by one thread, and not by two at once."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra(
            "images need Pillow, which is not installed", "pip install 'batchwright[media]'"
        ) from None
    Image.init()
    # Its own limit warns or raises by its own measure; ours is checked before a pixel is decoded.
    Image.MAX_IMAGE_PIXELS = None
    return Image


def check_installed(kind: MediaKind) -> None:
    """Raise MissingExtra before the first row, rather than in a thread."""
    if kind == "image":
        _pillow()


def _check_seconds(found: str, data: bytes, limits: MediaLimits, name: str) -> None:
    try:
        seconds = _seconds(found, data)
    except _DAMAGED as error:
        raise MediaProblem("bad_media", f"{name} cannot be opened: {error}") from None
    if seconds > limits.max_seconds:
        raise MediaProblem(
            "media_too_large",
            f"{name}: {seconds:.0f} s; media.max_seconds is {limits.max_seconds:g}",
        )


def _seconds(found: str, data: bytes) -> float:
    """Length by the header; what only soundfile knows is taken for 0 s without it."""
    if importlib.util.find_spec("soundfile") is not None:
        import soundfile

        return float(soundfile.info(io.BytesIO(data)).duration)
    if found != "audio/wav":
        return 0.0
    with wave.open(io.BytesIO(data)) as sound:
        if sound.getnframes() < 1:
            raise ValueError("it holds no sound")
        return float(sound.getnframes() / sound.getframerate())
