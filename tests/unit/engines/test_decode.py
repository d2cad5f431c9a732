from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from batchwright.core.errors import RowError
from batchwright.core.media import Media
from batchwright.engines.decode import decode
from tests.support.pictures import png, wav


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_tone_is_the_same_in_any_width(width: int) -> None:
    samples, rate = decode(Media("audio", "audio/wav", wav(0.01, width=width)))
    wanted = 0.5 * np.sin(2 * np.pi * 440 * np.arange(160) / 16_000)
    assert rate == 16_000
    assert samples.dtype == np.float32
    assert np.abs(samples - wanted).max() < 1 / 64


def test_what_is_transparent_lies_on_white_and_a_photograph_stands_upright() -> None:
    clear = io.BytesIO()
    Image.new("RGBA", (2, 2), (9, 9, 9, 0)).save(clear, "PNG")
    assert decode(Media("image", "image/png", clear.getvalue())).getpixel((0, 0)) == (255,) * 3
    turned = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (4, 2)).save(turned, "JPEG", exif=exif)
    assert decode(Media("image", "image/jpeg", turned.getvalue())).size == (2, 4)


@pytest.mark.parametrize(
    "media",
    [
        Media("image", "image/jpeg", png(size=(200, 200), image_format="JPEG")[:900]),
        Media("image", "image/png", b"\x89PNG\r\n\x1a\n nothing"),
        Media("audio", "audio/wav", wav()[:40]),
    ],
)
def test_what_cannot_be_decoded_fails_its_own_row(media: Media) -> None:
    with pytest.raises(RowError) as caught:
        decode(media)
    assert caught.value.code == "bad_media"
