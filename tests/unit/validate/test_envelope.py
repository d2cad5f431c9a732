from __future__ import annotations

from typing import Any

import pytest

from batchwright.core.errors import RowError
from batchwright.validate.envelope import unwrap
from batchwright.validate.sampling import RowSampling

MESSAGES = [{"role": "user", "content": "hi"}]


def line(url: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": MESSAGES} | body
    return {"custom_id": "1", "method": "POST", "url": url, "body": body}


def test_chat() -> None:
    envelope = unwrap(
        line(tools=[{"type": "function"}], temperature=0, max_tokens=9, user="u",
             metadata={"a": "b"}, stream=False, n=1, logprobs=False, top_logprobs=None,
             response_format={"type": "text"}, tool_choice="auto", seed=None),
        model="m",
    )  # fmt: skip
    assert envelope.record == {"messages": MESSAGES, "tools": [{"type": "function"}]}
    assert envelope.sampling == {
        "temperature": 0, "max_tokens": 9, "n": 1, "logprobs": False,
        "response_format": {"type": "text"},
    }  # fmt: skip
    assert envelope.warnings == ()
    assert RowSampling({}, None).resolve_fields(envelope.sampling) == ('{"temperature":0.0}', 9)


def test_completions() -> None:
    row = line("/v1/completions", prompt="x", messages=None, max_completion_tokens=5, max_tokens=9)
    envelope = unwrap(row, model="m")
    assert envelope.record == {"prompt": "x"}
    assert envelope.sampling == {"max_tokens": 5}


def test_model() -> None:
    assert unwrap(line(), model="other").warnings == ("model_ignored",)
    assert unwrap(line(model=None), model="other").warnings == ()


def change(**top: Any) -> dict[str, Any]:
    return line() | top


@pytest.mark.parametrize(
    ("row", "code", "word"),
    [
        ({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
          "messages": MESSAGES}, "bad_envelope", "messages belongs"),
        (change(body="{}"), "bad_envelope", "str"),
        (change(temperature=1), "bad_envelope", "temperature"),
        (change(method="GET"), "bad_envelope", "method"),
        (change(method=None), "bad_envelope", "method"),
        (change(url="/v1/unknown"), "bad_envelope", "/v1/unknown"),
        (change(url=None), "bad_envelope", "None"),
        (change(url="https://host.example/v1/chat/completions"), "bad_envelope", "path"),
        (change(url="/v1/embeddings"), "unsupported", "generates"),
        (line("/v1/completions"), "missing_prompt", "prompt"),
        (line(messages=None), "missing_prompt", "messages"),
        (line(prompt="x"), "ambiguous_prompt", "prompt"),
        (line(stream=True), "bad_envelope", "stream"),
        (line(max_token=3), "bad_envelope", "'max_tokens'"),
        (line(tool_choice="required"), "unsupported", "tool_choice"),
        (line(reasoning_effort="low"), "unsupported", "reasoning_effort"),
    ],
)  # fmt: skip
def test_refuses(row: dict[str, Any], code: str, word: str) -> None:
    with pytest.raises(RowError) as caught:
        unwrap(row, model="m")
    assert caught.value.code == code
    assert word in caught.value.message


def test_wrong_sampling_value_is_the_rows_error() -> None:
    envelope = unwrap(line(temperature="0.7"), model="m")
    with pytest.raises(RowError, match="bad_sampling"):
        RowSampling({}, None).resolve_fields(envelope.sampling)
