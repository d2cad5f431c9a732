"""Options of the openai engine, and what a prepared row carries along for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from batchwright.config.job import Job
from batchwright.core.errors import JobError, RowError
from batchwright.core.records import Prompt
from batchwright.engines.openai_options import (
    check_endpoint_job,
    endpoint_options,
    parse_options,
    secrets_of,
    worker_options,
)
from batchwright.engines.openai_request import row_extras

URL = "http://localhost:8000/v1"


def test_one_address_or_several_are_taken_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_options({"base_url": URL + "/"}).base_urls == (URL,)
    several = parse_options({"base_url": [URL, "https://b/v1", URL]})
    assert several.base_urls == (URL, "https://b/v1")
    assert several.rows_at_once(embeds=False) == 512
    assert several.rows_at_once(embeds=True) == 512 * 32
    monkeypatch.setenv("OPENAI_BASE_URL", "http://env/v1")
    assert parse_options({}).base_urls == ("http://env/v1",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": "localhost:8000"}, "base_url: http://HOST"),
        ({"base_url": "http://me:pw@host/v1"}, "holds a user, a password"),
        ({"base_url": URL, "rmp": 3}, "no such option\n  Did you mean rpm"),
        ({"base_url": URL, "rpm": -1}, "rpm: a number"),
        ({"base_url": URL, "max_concurrency": 0}, "max_concurrency: a whole number from 1"),
        ({"base_url": URL, "max_retries": True}, "max_retries: a whole number"),
        ({"base_url": URL, "timeout_s": "10"}, "timeout_s: a number"),
        ({"base_url": URL, "dialect": "claude"}, "dialect: one of vllm, openai"),
        ({"base_url": URL, "headers": {"Authorization": "Bearer x"}}, "would be written"),
        ({"base_url": URL, "body": [1]}, "body: names with values"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError) as caught:
        parse_options(options)
    assert message in str(caught.value)


def test_an_address_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(JobError, match="does not know where the model is"):
        parse_options({})


def test_a_key_that_is_named_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert secrets_of(parse_options({"base_url": URL})) == ({}, ())
    with pytest.raises(JobError, match="variable NOT_SET_HERE, which is not set"):
        secrets_of(parse_options({"base_url": URL, "api_key_env": "NOT_SET_HERE"}))


def test_what_is_allowed_per_minute_is_shared_among_workers() -> None:
    shared = worker_options({"rpm": 600, "give_up_after_s": 5}, hang_timeout_s=90, replicas=4)
    assert shared == {"rpm": 150, "give_up_after_s": 5}
    assert worker_options({}, hang_timeout_s=90, replicas=1) == {"give_up_after_s": 90}


def job(**sections: Any) -> Job:
    engine = {"kind": "openai", "options": {"base_url": URL, **sections.pop("options", {})}}
    model = {"name": "m", **sections.pop("model", {})}
    return Job.model_validate(
        {"input": {"path": "x"}, "engine": engine, "model": model, **sections}
    )


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"name": ""}}, "no model is given"),
        ({"model": {"tool_call_parser": "hermes"}}, "are the endpoint's own"),
        ({"plan": {"usd_per_gpu_hour": 2.0}}, "cards of this machine"),
        ({"options": {"max_model_len": 4096}}, "needs the model's tokenizer"),
    ],
)
def test_what_an_endpoint_cannot_be_told_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        check_endpoint_job(job(**sections))
    check_endpoint_job(job(options={"max_num_seqs": 5}))


VLLM = endpoint_options(job())
OPENAI = endpoint_options(job(options={"dialect": "openai"}))


def extras(prompt: Prompt, sampling: str = "{}", *, truncated: bool = False) -> Any:
    assert VLLM is not None
    text = row_extras(prompt, sampling, VLLM, truncated=truncated)
    return json.loads(text) if text else None


def test_a_row_carries_what_its_tokens_do_not_tell() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}
    turns = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    sent = extras(Prompt(messages=turns, tools=[{"t": 1}], template_kwargs={"k": 2}))["http"]
    assert sent["messages"][0] == turns[0]
    assert sent["messages"][1]["tool_calls"] == [
        {"type": "function", "id": "c", "function": {"name": "f", "arguments": '{"a":1}'}}
    ]
    assert (sent["tools"], sent["template_kwargs"]) == ([{"t": 1}], {"k": 2})
    assert extras(Prompt(text="once")) == {"http": {"prompt": "once"}}
    assert extras(Prompt(token_ids=[1])) is None
    assert extras(Prompt(text="cut"), truncated=True) is None, "its ids say what is left"


@pytest.mark.parametrize(
    ("prompt", "sampling", "truncated", "named"),
    [
        (Prompt(text="x"), '{"min_p":0.1,"temperature":0}', False, "min_p: no field"),
        (
            Prompt(text="x"),
            '{"structured_outputs":{"regex":"a"}}',
            False,
            "structured_outputs.regex",
        ),
        (Prompt(messages=[], template_kwargs={"a": 1}), "{}", False, "chat_template_kwargs"),
        (Prompt(text="x"), "{}", True, "only be sent as token ids"),
    ],
)
def test_openais_own_api_is_sent_nothing_else(
    prompt: Prompt, sampling: str, *, truncated: bool, named: str
) -> None:
    assert OPENAI is not None
    with pytest.raises(RowError, match=named):
        row_extras(prompt, sampling, OPENAI, truncated=truncated)
    known = '{"temperature":0,"logprobs":2,"structured_outputs":{"json":"{}"}}'
    assert row_extras(Prompt(text="x"), known, OPENAI, truncated=False)
