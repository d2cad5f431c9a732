"""Images and sounds of a row: found in messages or columns, their form checked, nothing fetched."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from batchwright.core.errors import RowError
from batchwright.core.media import MediaKind, MediaReference

# Parts of a message by their type. The keys that may hold what is meant stand in order.
PART_KEYS: dict[str, tuple[MediaKind, tuple[str, ...]]] = {
    "image_url": ("image", ("image_url",)),
    "input_image": ("image", ("image_url",)),
    "image": ("image", ("image", "url", "path", "base64", "image_url")),
    "input_audio": ("audio", ("input_audio",)),
    "audio_url": ("audio", ("audio_url",)),
    "audio": ("audio", ("audio", "url", "path", "base64", "audio_url")),
}

# Inside of such a key may stand an object with one of these.
_INNER_KEYS = ("url", "data", "bytes", "path")

_SCHEME = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]*):")
_DATA_URL = re.compile(r"^data:([\w.+-]+/[\w.+-]+)?((?:;[\w.+-]+=[^;,]*)*);base64,", re.IGNORECASE)

# What base64 of JPEG, PNG, GIF, WebP and WAV, FLAC, OGG, MP3, TIFF begins with. A path may begin
# like that too (`/9j/`), but is shorter than any image, and has a dot.
_BASE64_HEADS = ("/9j/", "iVBORw0KGgo", "R0lGOD", "UklGR", "ZkxhQ", "T2dnUw", "SUQz", "//", "SUkq",
                 "TU0A", "Qk")  # fmt: skip
_SHORTEST_BASE64 = 64
_BASE64 = re.compile(r"^[A-Za-z0-9+/\s]+=*\s*$")
_BASE64_SHOWN = 4096  # characters that are looked at

_LONGEST_SOURCE = 8192  # of a URL or path


class MediaForms:
    """Turns what a row says of an image or a sound into references.

    Args:
        roots: folders below which files may lie, absolute.
        folder: relative paths begin here: the folder of the row's own file.
    """

    def __init__(self, roots: Sequence[str] = (), folder: str = "") -> None:
        self._roots = [os.path.normpath(root) for root in roots]
        self._folder = folder

    def below(self, folder: str) -> MediaForms:
        """The same for the rows of a file in another folder."""
        return MediaForms(self._roots, folder)

    def from_part(self, part: Mapping[str, Any], at: Sequence[str | int]) -> MediaReference:
        """The medium that a part of a message names; an open one if it only keeps a place."""
        kind, keys = PART_KEYS[str(part["type"])]
        key = next((key for key in keys if part.get(key) is not None), None)
        if key is not None:
            return self.from_value(kind, part[key], [*at, key])
        if part["type"] == kind:
            return MediaReference(kind)
        raise RowError("bad_media", f"{_place(at)} has no {keys[0]}")

    def from_column(self, kind: MediaKind, value: Any, column: str) -> list[MediaReference]:
        """The media of a column: one, a list of them, or none where it is null."""
        if value is None:
            return []
        if isinstance(value, list):
            return [self.from_value(kind, one, [column, i]) for i, one in enumerate(value)]
        return [self.from_value(kind, value, [column])]

    def from_value(self, kind: MediaKind, value: Any, at: Sequence[str | int]) -> MediaReference:
        """A reference from a path, a URL, bytes, base64, or an object that holds one of them.

        Raises:
            RowError: `bad_media` or `media_forbidden`.
        """
        if isinstance(value, Mapping):
            key = next((key for key in _INNER_KEYS if value.get(key) is not None), None)
            if key is None:
                known = ", ".join(_INNER_KEYS)
                raise RowError("bad_media", f"{_place(at)} has none of the keys {known}")
            at = [*at, key]
            value = value[key]
        if isinstance(value, bytes) and value:
            return MediaReference(kind, at=tuple(at))
        if not isinstance(value, str) or not value:
            what = "empty" if value in ("", b"") else f"no text but {type(value).__name__}"
            raise RowError("bad_media", f"{_place(at)} is {what}")
        if is_inline(value, at):
            return MediaReference(kind, at=tuple(at))
        if len(value) > _LONGEST_SOURCE:
            raise RowError(
                "bad_media", f"{_place(at)} is no base64, and too long for a URL or path"
            )
        return MediaReference(kind, self._source(value, at))

    def _source(self, value: str, at: Sequence[str | int]) -> str:
        found = _SCHEME.match(value)
        scheme = found[1].lower() if found else ""
        if scheme in ("http", "https"):
            return _checked_url(value, at)
        if scheme == "file":
            parts = urlsplit(value)
            if parts.netloc not in ("", "localhost"):
                raise RowError("media_forbidden", f"{_place(at)}: a file of another machine")
            value = unquote(parts.path)
        elif scheme and "://" in value[: len(scheme) + 3]:
            raise RowError(
                "media_forbidden",
                f"{_place(at)}: {scheme} is not fetched; there are http, https, data and files",
            )
        return self._path(value, at)

    def _path(self, value: str, at: Sequence[str | int]) -> str:
        if "\0" in value:
            raise RowError("bad_media", f"{_place(at)}: the path holds a null character")
        path = os.path.normpath(os.path.join(self._folder, value))  # noqa: PTH118  (text only)
        if not is_below(path, self._roots):
            raise RowError(
                "media_forbidden",
                f"{_place(at)}: {path} lies in none of the folders that media.allowed_roots names",
            )
        return path


# For a first look at a row, which asks only whether it has what a prompt needs.
ANYWHERE = MediaForms(roots=("/",), folder="/")


def fill_places(
    messages: list[dict[str, Any]],
    found: Sequence[MediaReference],
    given: Mapping[MediaKind, Sequence[MediaReference]],
) -> tuple[list[dict[str, Any]], tuple[MediaReference, ...]]:
    """Messages and all of their media, once those of the columns have their places.

    They go to the parts that only keep a place; without such parts, ahead of the last message of
    the user, which is how most models were trained.

    Args:
        messages: with a part of type image or audio for each of `found`.
        found: the media that the messages name, open where a part only keeps a place.
        given: the media of the columns.

    Raises:
        RowError: `bad_media` where places and media do not match in number.
    """
    media = list(found)
    ahead: list[MediaReference] = []
    for kind in ("image", "audio"):
        items = list(given.get(kind, ()))
        places = [i for i, one in enumerate(media) if one.kind == kind and one.is_open]
        if not places:
            ahead += items
            continue
        if len(places) != len(items):
            raise RowError(
                "bad_media",
                f"the messages keep {len(places)} places for {kind}, the row has {len(items)}",
            )
        for place, item in zip(places, items, strict=True):
            media[place] = item
    if not ahead:
        return messages, tuple(media)
    last = max((i for i, one in enumerate(messages) if one["role"] == "user"), default=-1)
    if last < 0:
        raise RowError("bad_media", "there is no message of the user to put the media into")
    before = sum(part["type"] != "text" for one in messages[:last] for part in parts_of(one))
    parts = [*({"type": one.kind} for one in ahead), *parts_of(messages[last])]
    changed = [*messages[:last], {**messages[last], "content": parts}, *messages[last + 1 :]]
    return changed, (*media[:before], *ahead, *media[before:])


def parts_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The content of a checked message as a list of parts."""
    content = message["content"]
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content)


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a checked message, its images and sounds left out."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")


def is_below(path: str, roots: Sequence[str]) -> bool:
    """Whether a normal path lies in one of the folders, by its name."""
    return any(path.startswith(root.rstrip("/") + "/") for root in roots)


def is_inline(value: str, at: Sequence[str | int]) -> bool:
    """Whether a text holds the content itself: a data URL or base64. Raises RowError."""
    if value[:5].lower() == "data:":
        # Only its head: the rest may be megabytes, and is read when it is needed.
        if not _DATA_URL.match(value[:512]):
            raise RowError(
                "bad_media", f"{_place(at)} is no data URL of the form data:TYPE;base64,"
            )
        return True
    if at and at[-1] in ("data", "base64"):
        return True
    if len(value) < _SHORTEST_BASE64 or not value.startswith(_BASE64_HEADS):
        return False
    return bool(_BASE64.match(value[:_BASE64_SHOWN]))


def _checked_url(url: str, at: Sequence[str | int]) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise RowError("bad_media", f"{_place(at)} is no URL: {error}") from None
    if not host or any(char.isspace() or ord(char) < 32 for char in url):
        raise RowError("bad_media", f"{_place(at)} is no URL: {url[:200]!r}")
    if parts.username or parts.password:
        raise RowError("media_forbidden", f"{_place(at)}: a URL with a name or password in it")
    return url


def _place(at: Sequence[str | int]) -> str:
    """`messages[0].content[1].image_url.url`."""
    out = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in at)
    return out.lstrip(".") or "the value"
