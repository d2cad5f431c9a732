from __future__ import annotations

from typing import Any

import pytest

from batchwright.core.errors import RowError
from batchwright.validate.envelope import task_of, unwrap
from batchwright.validate.sampling import RowSampling

MESSAGES = [{"role": "user", "content": "hi"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY}}


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
        (change(url="/v1/embeddings"), "unsupported", "task: embed"),
        (change(url="/v1/rerank"), "unsupported", "/v1/chat/completions"),
        (line("/v1/completions"), "missing_prompt", "prompt"),
        (line(messages=None), "missing_prompt", "messages"),
        (line(prompt="x"), "ambiguous_prompt", "prompt"),
        (line(stream=True), "bad_envelope", "stream"),
        (line(max_token=3), "bad_envelope", "'max_tokens'"),
        (line(tool_choice="required"), "bad_messages", "no tools"),
        (line(tool_choice={"type": "function", "function": {"name": "f"}}), "bad_messages", "'f'"),
        (line(tool_choice="any", tools=[TOOL]), "bad_messages", "tool_choice"),
        (line(tool_choice="required", tools=[TOOL], guided_regex="a"), "bad_sampling",
         "guided_regex"),
        (line("/v1/completions", prompt="x", messages=None, tools=[TOOL]), "bad_envelope", "tools"),
        (line("/v1/completions", prompt=["a", "b"], messages=None), "bad_prompt", "2 prompts"),
        (line("/v1/completions", prompt=[[1, 2], [3]], messages=None), "bad_prompt", "2 prompts"),
        (line(verbosity="low"), "unsupported", "verbosity"),
        (line(truncate_prompt_tokens=5), "unsupported", "truncate_prompt_tokens"),
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


@pytest.mark.parametrize("prompt", ["a", ["a"]])
def test_a_list_of_one_prompt_is_that_prompt(prompt: Any) -> None:
    asked = unwrap(line("/v1/completions", prompt=prompt, messages=None), model="m")
    assert asked.record == {"prompt": "a"}


def test_token_ids_are_one_prompt() -> None:
    for prompt in ([11, 12], [[11, 12]]):
        asked = unwrap(line("/v1/completions", prompt=prompt, messages=None), model="m")
        assert asked.record == {"prompt": [11, 12]}


def test_no_tool_choice_leaves_the_tools_out() -> None:
    assert "tools" not in unwrap(line(tools=[TOOL], tool_choice="none"), model="m").record


def test_a_named_function_constrains_the_answer_to_its_arguments() -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    asked = unwrap(line(tools=[TOOL], tool_choice=choice), model="m")
    assert asked.record["tools"] == [TOOL]
    assert asked.sampling == {"structured_outputs": {"json": CITY}}
    assert asked.extras == '{"forced_call":"weather"}'
    RowSampling({}, None).resolve_fields(asked.sampling)


def test_a_required_call_constrains_the_answer_to_a_list_of_calls() -> None:
    row = line(tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    asked = unwrap(row, model="m")
    schema = asked.sampling["structured_outputs"]["json"]
    assert (schema["type"], schema["minItems"], schema["maxItems"]) == ("array", 1, 1)
    (item,) = schema["items"]["anyOf"]
    assert item["properties"]["name"]["enum"] == ["weather"]
    assert item["properties"]["parameters"] == CITY
    assert asked.extras == '{"forced_call":""}'


def test_fields_that_are_the_templates() -> None:
    row = line(reasoning_effort="none", chat_template_kwargs={"k": 1}, add_generation_prompt=True)
    assert unwrap(row, model="m").record["chat_template_kwargs"] == {
        "reasoning_effort": "none", "add_generation_prompt": True, "enable_thinking": False, "k": 1,
    }  # fmt: skip
    going_on = unwrap(line(continue_final_message=True), model="m").record
    assert going_on["chat_template_kwargs"] == {
        "continue_final_message": True, "add_generation_prompt": False,
    }  # fmt: skip


def embedding(**body: Any) -> dict[str, Any]:
    body = {"model": "m", "input": "text"} | body
    return {"custom_id": "1", "method": "POST", "url": "/v1/embeddings", "body": body}


@pytest.mark.parametrize(
    ("given", "read"), [("text", "text"), (["text"], "text"), ([[5, 6]], [5, 6]), ([5, 6], [5, 6])]
)
def test_embeddings(given: Any, read: Any) -> None:
    row = embedding(input=given, encoding_format="base64", dimensions=8, user="u")
    asked = unwrap(row, model="m", task="embed", dimensions=8)
    assert asked == ({"prompt": read}, {}, (), None, "m")


@pytest.mark.parametrize(
    ("row", "code", "word"),
    [
        (embedding(input=None), "missing_prompt", "input"),
        (embedding(input=["a", "b", "c"]), "bad_prompt", "3 prompts"),
        (embedding(dimensions=4), "unsupported", "embedding.dimensions"),
        (embedding(encoding_format="bytes"), "unsupported", "encoding_format"),
        (embedding(temperature=1), "bad_envelope", "temperature"),
        (line(), "unsupported", "task: generate"),
    ],
)
def test_refuses_of_embeddings(row: dict[str, Any], code: str, word: str) -> None:
    with pytest.raises(RowError) as caught:
        unwrap(row, model="m", task="embed", dimensions=8)
    assert caught.value.code == code
    assert word in caught.value.message


def test_the_url_says_the_task() -> None:
    assert [task_of(one) for one in (line(), embedding(), {"url": 3}, {}, line("/v1/x"))] == [
        "generate", "embed", None, None, None,
    ]  # fmt: skip
