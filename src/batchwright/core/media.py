"""Images and sounds of a row: how they are referred to until a worker fetches them.

The `extras` of a row with media begin with `{"media_tokens": N, "media": [REFERENCE, …]`: what they
are expected to add to the prompt, and where they are, in the order in which their placeholders
stand in it. A REFERENCE is one of

    {"kind": "image", "source": "https://example.org/a.jpg"}     fetched
    {"kind": "audio", "source": "/data/sounds/a.wav"}            read, below an allowed folder
    {"kind": "image", "at": ["messages", 0, "content", 1, "image_url", "url"]}

`at` is the place in the row's own input that holds the bytes, base64 text or `data:` URL; on the
way a JSON text counts as what it says. So nothing that the input holds is written a second time.

Messages keep their shape: a message with media has a list of parts, and the n-th part of type
`image` or `audio` over all messages stands for the n-th reference. An engine that sends messages
on puts each item there; one that takes token ids finds a placeholder for it among them.
`Request.media` has the content itself, encoded as it came and checked, in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import orjson

MediaKind = Literal["image", "audio"]

MediaType = Literal[
    "image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff",
    "audio/wav", "audio/flac", "audio/ogg", "audio/mpeg",
]  # fmt: skip
MEDIA_TYPES: tuple[MediaType, ...] = get_args(MediaType)

# What is known by its first bytes, and what it is. RIFF files say at byte 8 what they hold.
_MAGIC = (
    (b"\xff\xd8\xff", "image/jpeg"), (b"\x89PNG\r\n\x1a\n", "image/png"), (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"), (b"II*\x00", "image/tiff"), (b"MM\x00*", "image/tiff"),
    (b"fLaC", "audio/flac"), (b"OggS", "audio/ogg"), (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"), (b"\xff\xf3", "audio/mpeg"), (b"\xff\xf2", "audio/mpeg"),
)  # fmt: skip


class Media(NamedTuple):
    """One image or sound as it goes to an engine: encoded, and of a type that is allowed."""

    kind: MediaKind
    type: str
    data: bytes


class MediaReference(NamedTuple):
    """Where an image or a sound is: a URL or an absolute path, or a place in the row's own input.

    Attributes:
        kind: image or audio.
        source: `http(s)` URL or path; empty if the row itself holds it.
        at: keys and indexes that lead to it in the row's input.
    """

    kind: MediaKind
    source: str = ""
    at: tuple[str | int, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether it only keeps a place, for what a column of the row holds."""
        return not self.source and not self.at

    def as_json(self) -> dict[str, Any]:
        """The form in a row's extras."""
        if self.source:
            return {"kind": self.kind, "source": self.source}
        return {"kind": self.kind, "at": list(self.at)}


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """What may be fetched, and what that may cost.

    Attributes:
        timeout_s: for one attempt at one item, from the first look-up to the last byte.
        max_bytes: of one item as it is stored.
        max_pixels: of one image when it is decoded.
        max_seconds: of one sound.
        allowed_types: of MEDIA_TYPES, as the content itself says.
        allowed_roots: folders below which files may be read, absolute.
        allow_private_addresses: fetch from this machine and from private networks too.
        max_redirects: followed for one item.
        retries: more attempts after one that failed for a reason that may pass.
        workers: items fetched at the same time.
    """

    timeout_s: float = 30.0
    max_bytes: int = 20 << 20
    max_pixels: int = 50_000_000
    max_seconds: float = 3600.0
    allowed_types: frozenset[str] = field(default_factory=lambda: frozenset(MEDIA_TYPES))
    allowed_roots: tuple[str, ...] = ()
    allow_private_addresses: bool = False
    max_redirects: int = 3
    retries: int = 2
    workers: int = 16


def sniff_type(data: bytes) -> str | None:
    """The type that the first bytes of a file tell, whatever its name or a server says."""
    if data[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(data[8:12])
    return next((known for magic, known in _MAGIC if data.startswith(magic)), None)


# Stands in the extras of a row that holds some of its media itself.
INLINE = '"at":['

# How the extras of a row with media begin.
MEDIA_HEAD = '{"media_tokens":'


def media_extras(references: Sequence[MediaReference], num_tokens: int) -> dict[str, Any]:
    """The beginning of the extras of a row with media; other keys may follow."""
    return {"media_tokens": num_tokens, "media": [one.as_json() for one in references]}


def has_media(extras: str) -> bool:
    """Whether a row's extras name media; they need not be read for that."""
    return extras.startswith(MEDIA_HEAD)


def read_references(extras: str) -> list[MediaReference]:
    """The media that a row's extras name, in order."""
    if not has_media(extras):
        return []
    return [
        MediaReference(one["kind"], one.get("source", ""), tuple(one.get("at", ())))
        for one in orjson.loads(extras)["media"]
    ]


def media_tokens(extras: str) -> int:
    """What the row's media are expected to add to its prompt."""
    return (
        int(extras[len(MEDIA_HEAD) : extras.index(",", len(MEDIA_HEAD))])
        if has_media(extras)
        else 0
    )


def find_inline(record: Any, at: Sequence[str | int]) -> Any:
    """What stands at a place of a row's input, or of the JSON text of one.

    Raises:
        LookupError, TypeError, ValueError: there is nothing.
    """
    value = record
    for step in at:
        if isinstance(value, str):
            value = json.loads(value)  # which takes what the readers take: NaN, long integers
        value = value[step]
    return value
