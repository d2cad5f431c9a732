"""Small pictures and sounds, made here."""

from __future__ import annotations

import io
import math
import struct
import wave
import zlib


def png(seed: int = 0, *, size: tuple[int, int] = (24, 16), image_format: str = "PNG") -> bytes:
    """A picture whose pixels follow from `seed`."""
    from PIL import Image

    width, height = size
    image = Image.new("RGB", size)
    image.putdata(
        [((x * 7 + seed * 90) % 256, (y * 11 + seed * 50) % 256, (x * y + seed) % 256)
         for y in range(height) for x in range(width)]
    )  # fmt: skip
    out = io.BytesIO()
    image.save(out, image_format)
    return out.getvalue()


def bomb(width: int = 60_000, height: int = 60_000) -> bytes:
    """A tiny PNG file that says it has so many pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def wav(seconds: float = 0.1, *, rate: int = 16_000, hertz: float = 440.0, width: int = 2) -> bytes:
    """A tone, in as many bytes per sample as asked for."""
    count = int(seconds * rate)
    half = 2 ** (8 * width - 1)
    values = [
        int(0.5 * (half - 1) * math.sin(2 * math.pi * hertz * i / rate)) for i in range(count)
    ]
    if width == 1:
        raw = bytes(value + 128 for value in values)
    else:
        raw = b"".join(value.to_bytes(width, "little", signed=True) for value in values)
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(raw)
    return out.getvalue()
