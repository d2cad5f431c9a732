"""What an endpoint is sent for rows with images and sounds."""

from __future__ import annotations

import json

import pytest

from batchwright.core.errors import RowError
from batchwright.core.media import Media, MediaReference
from batchwright.core.records import Prompt, Request
from batchwright.engines.openai_options import parse_options
from batchwright.engines.openai_request import EXTRAS_KEY, generation_call, row_extras

OPTIONS = {"base_url": "http://127.0.0.1:9/v1"}


def test_images_and_sounds_go_as_data_in_their_places() -> None:
    parts = [
        {"type": "text", "text": "what is"},
        {"type": "image"},
        {"type": "audio"},
    ]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    extras = json.dumps(
        {"media_tokens": 3, "media": [], EXTRAS_KEY: {"messages": messages}}, separators=(",", ":")
    )
    media = (Media("image", "image/png", b"PNG"), Media("audio", "audio/mpeg", b"MP3"))
    call = generation_call(Request(0, [1], 5, "{}", extras, media), parse_options(OPTIONS))
    system, user = call.body["messages"]
    assert system == messages[0]
    assert user["content"] == [
        {"type": "text", "text": "what is"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,UE5H"}},
        {"type": "input_audio", "input_audio": {"data": "TVAz", "format": "mp3"}},
    ]


def test_a_cut_prompt_with_images_is_refused() -> None:
    prompt = Prompt(messages=[], media=(MediaReference("image", "/a.png"),))
    with pytest.raises(RowError, match="hold no images"):
        row_extras(prompt, "{}", parse_options(OPTIONS), truncated=True)
