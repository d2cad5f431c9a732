from __future__ import annotations

from typing import Any

import pytest

from batchwright.core.errors import RowError
from batchwright.validate.envelope import unwrap
from batchwright.validate.messages import parse_messages
from batchwright.validate.sampling import RowSampling


def line(**body: Any) -> dict[str, Any]:
    body = {"model": "m", "input": "hi"} | body
    return {"custom_id": "1", "method": "POST", "url": "/v1/responses", "body": body}


def test_text_with_instructions() -> None:
    asked = unwrap(line(instructions="be brief", max_output_tokens=7, temperature=0), model="m")
    assert asked.record == {
        "messages": [
            {"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"},
        ]
    }  # fmt: skip
    assert asked.sampling == {"max_tokens": 7, "temperature": 0}


def test_items_become_the_turns_of_a_chat() -> None:
    asked = unwrap(line(input=[
        {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "function_call", "call_id": "a", "name": "w", "arguments": '{"city":"Rome"}'},
        {"type": "function_call", "call_id": "b", "name": "w", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "sunny"},
        {"type": "message", "role": "user", "content": "and now?"},
    ]), model="m")  # fmt: skip
    turns = parse_messages(asked.record["messages"])
    assert [turn["role"] for turn in turns] == ["user", "assistant", "tool", "user"]
    assert [call["function"]["arguments"] for call in turns[1]["tool_calls"]] == [
        {"city": "Rome"}, {},
    ]  # fmt: skip
    assert (turns[2]["tool_call_id"], turns[2]["content"]) == ("a", "sunny")


def test_format_tools_and_effort() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tool = {"type": "function", "name": "f", "parameters": schema, "strict": True}
    shape = {"type": "json_schema", "name": "x", "schema": schema}
    asked = unwrap(
        line(text={"format": shape}, tools=[tool], reasoning={"effort": "low"}), model="m"
    )
    sampling, _ = RowSampling({}, None).resolve_fields(asked.sampling)
    assert '"structured_outputs":{"json":' in sampling
    assert asked.record["tools"] == [
        {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    ]
    kwargs = asked.record["chat_template_kwargs"]
    assert kwargs == {"reasoning_effort": "low", "enable_thinking": True}
    named = unwrap(line(tools=[tool], tool_choice={"type": "function", "name": "f"}), model="m")
    assert named.extras == '{"forced_call":"f"}'


@pytest.mark.parametrize(
    ("body", "code", "word"),
    [
        ({"input": None}, "missing_prompt", "input"),
        ({"input": []}, "empty_prompt", "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "unsupported", "item_reference"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "unsupported",
         "input_image"),
        ({"previous_response_id": "resp_1"}, "unsupported", "previous_response_id"),
        ({"conversation": "c"}, "unsupported", "conversation"),
        ({"background": True}, "unsupported", "background"),
        ({"tools": [{"type": "web_search"}]}, "unsupported", "web_search"),
        ({"text": {"verbosity": "high"}}, "unsupported", "verbosity"),
        ({"stream": True}, "bad_envelope", "stream"),
        ({"max_tokens": 5}, "bad_envelope", "max_tokens"),
        ({"messages": []}, "bad_envelope", "messages"),
    ],
)  # fmt: skip
def test_refuses(body: dict[str, Any], code: str, word: str) -> None:
    with pytest.raises(RowError) as caught:
        unwrap(line(**body), model="m")
    assert caught.value.code == code
    assert word in caught.value.message
