from __future__ import annotations

from typing import Any

import pytest

from batchwright.core.errors import RowError
from batchwright.validate.messages import parse_messages

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def test_parts_become_one_text_and_nulls_go() -> None:
    message = {
        "role": "user", "name": None, "content": [
            {"type": "text", "text": "a"}, {"type": "text", "text": "b"}
        ],
    }  # fmt: skip
    assert parse_messages([message]) == [{"role": "user", "content": "a\nb"}]
    assert message["name"] is None, "the input is not changed"


def test_a_refusal_is_what_the_assistant_said() -> None:
    part = {"type": "refusal", "refusal": "No."}
    message = {"role": "assistant", "content": [part]}
    assert parse_messages([message]) == [{"role": "assistant", "content": "No."}]


def test_tool_calls() -> None:
    rows = parse_messages(
        [
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "3", "tool_call_id": "1", "tool_calls": None},
            {"role": "assistant", "content": "x", "tool_calls": []},
        ]
    )
    assert rows[0]["content"] == ""
    assert rows[0]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert isinstance(CALL["function"], dict)
    assert isinstance(CALL["function"]["arguments"], str)
    assert rows[1] == {"role": "tool", "content": "3", "tool_call_id": "1"}
    assert rows[2] == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("messages", "code", "where"),
    [
        ("not json", "bad_messages", "no JSON"),
        ('{"role": "user"}', "bad_messages", "an object"),
        (7, "bad_messages", "int"),
        (["hi"], "bad_messages", "message 0"),
        ([{"content": "x"}], "bad_messages", "message 0"),
        ([{"role": "user", "content": "x"}, {"role": "pirate", "content": "x"}],
         "bad_messages", "message 1"),
        ([{"role": ["user"], "content": "x"}], "bad_messages", "message 0"),
        ([{"role": "user"}], "bad_messages", "message 0 has no content"),
        ([{"role": "user", "content": 3}], "bad_messages", "message 0"),
        ([{"role": "user", "content": ["x"]}], "bad_messages", "part"),
        ([{"role": "user", "content": [{"type": "text", "text": 3}]}], "bad_messages", "part"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "unsupported", "image_url"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "unsupported", "audio"),
        ([{"role": "assistant", "tool_calls": {}, "content": None}], "bad_messages", "content"),
        ([{"role": "assistant", "tool_calls": "x"}], "bad_messages", "not a list"),
        ([{"role": "assistant", "tool_calls": [{}]}], "bad_messages", "function.name"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
         "bad_messages", "arguments"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}],
         "bad_messages", "arguments"),
    ],
)  # fmt: skip
def test_refuses(messages: Any, code: str, where: str) -> None:
    with pytest.raises(RowError) as caught:
        parse_messages(messages)
    assert caught.value.code == code
    assert where in caught.value.message
