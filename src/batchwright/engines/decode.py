"""Encoded images and sounds to what a model's processor takes: pictures, and samples with a rate."""

from __future__ import annotations

import importlib.util
import io
import wave
from typing import Any

import numpy as np
import numpy.typing as npt

from batchwright.core.errors import RowError
from batchwright.core.media import Media

# What the decoders raise for a damaged file, each by its own mind.
_DAMAGED = (OSError, EOFError, SyntaxError, ValueError, ArithmeticError, LookupError, TypeError,
            MemoryError, RuntimeError, wave.Error)  # fmt: skip

Samples = npt.NDArray[np.float32]


def decode(media: Media) -> Any:
    """The content of one item.

    Returns:
        A Pillow image in RGB, or samples of one channel (float32 from -1 to 1) with their rate.

    Raises:
        RowError: `bad_media`.
    """
    try:
        return _image(media.data) if media.kind == "image" else _sound(media)
    except _DAMAGED as error:
        message = f"the {media.type} cannot be decoded: {str(error) or type(error).__name__}"
        raise RowError("bad_media", message) from None


def _image(data: bytes) -> Any:
    """The first frame, upright, what is transparent on white: as vLLM's own server shows it."""
    from PIL import Image, ImageOps

    Image.MAX_IMAGE_PIXELS = None  # the size was checked by the job's own limit
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.mode == "RGB":
        image.load()
        return image
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        upper = image.convert("RGBA")
        ground = Image.new("RGBA", upper.size, (255, 255, 255, 255))
        return Image.alpha_composite(ground, upper).convert("RGB")
    return image.convert("RGB")


def _sound(media: Media) -> tuple[Samples, int]:
    if importlib.util.find_spec("soundfile") is not None:
        import soundfile

        samples, rate = soundfile.read(io.BytesIO(media.data), dtype="float32", always_2d=True)
        return np.ascontiguousarray(samples.mean(axis=1, dtype=np.float32)), int(rate)
    if media.type != "audio/wav":
        raise ValueError("only WAV is read without soundfile: pip install 'batchwright[audio]'")
    return _wav(media.data)


def _wav(data: bytes) -> tuple[Samples, int]:
    with wave.open(io.BytesIO(data)) as file:
        width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
        raw = file.readframes(file.getnframes())
    raw = raw[: len(raw) - len(raw) % (width * channels)]
    if not raw:
        raise ValueError("it holds no sound")
    samples = _samples(np.frombuffer(raw, np.uint8), width)
    return samples.reshape(-1, channels).mean(axis=1, dtype=np.float32), rate


def _samples(raw: npt.NDArray[np.uint8], width: int) -> Samples:
    """PCM of any width as numbers from -1 to 1; 8 bits are unsigned, all others are not."""
    if width == 1:
        return (raw.astype(np.float32) - np.float32(128)) / np.float32(128)
    if width == 3:
        # Moved up to 4 bytes, so that the sign is where it belongs.
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = raw.reshape(-1, 3)
        return wide.view("<i4").reshape(-1).astype(np.float32) / np.float32(2**31)
    return raw.view(f"<i{width}").astype(np.float32) / np.float32(2 ** (8 * width - 1))
