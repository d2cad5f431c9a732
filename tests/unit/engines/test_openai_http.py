"""The openai engine against a small server: each kind of answer, each kind of failure."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from batchwright.core.errors import EngineError, JobError
from batchwright.core.outcomes import Logprob, Outcome
from batchwright.core.ports import EngineSettings
from batchwright.core.records import Request
from batchwright.core.tasks import GENERATE, TaskSettings
from batchwright.core.vectors import EmbeddingSettings
from batchwright.engines.openai_http import OpenAiEngine
from tests.support.fake_endpoint import (
    Answer,
    Call,
    chat_answer,
    error_body,
    serving,
    text_answer,
)

MODEL = "some/model"


@contextmanager
def engine_at(
    *urls: str, embedding: EmbeddingSettings | None = None, **options: Any
) -> Iterator[OpenAiEngine]:
    engine = OpenAiEngine()
    engine.start(
        EngineSettings(
            "openai", MODEL, 64, 1 << 30,
            task=GENERATE if embedding is None else TaskSettings("embed", embedding),
            options={"base_url": list(urls), "give_up_after_s": 20, **options},
        )
    )  # fmt: skip
    try:
        yield engine
    finally:
        engine.stop()
        engine.stop()


def chat(row: int, text: str = "hi", **more: Any) -> Request:
    parts = {"messages": [{"role": "user", "content": text}], **more}
    return Request(row, [1, 2], 9, '{"temperature":0.0}', json.dumps({"http": parts}))


def collect(engine: OpenAiEngine, count: int) -> dict[int, Outcome]:
    outcomes: list[Outcome] = []
    deadline = time.monotonic() + 30
    while len(outcomes) < count and time.monotonic() < deadline:
        outcomes += engine.step(0.1)
    found = {outcome.row: outcome for outcome in outcomes}
    assert len(found) == len(outcomes) == count
    return found


def ask(reply: Callable[[Call], Answer], *requests: Request, **options: Any) -> list[Outcome]:
    with serving(reply) as endpoint, engine_at(endpoint.url, **options) as engine:
        engine.submit(requests)
        found = collect(engine, len(requests))
        assert engine.step(0.05) == [], "never more than one answer per row"
    return [found[one.row] for one in requests]


def echo(call: Call) -> Answer:
    """What was asked, as the answer."""
    if call.path.endswith("/chat/completions"):
        return Answer(chat_answer(call.body["messages"][-1]["content"]))
    prompt = call.body["prompt"]
    return Answer(text_answer(prompt if isinstance(prompt, str) else f"ids {prompt}"))


def test_chat_text_and_ids_go_where_they_belong() -> None:
    text = Request(1, [3], 5, '{"top_k":4}', '{"http":{"prompt":"once"}}')
    ids = Request(2, [3, 4], 5, "{}")
    with serving(echo, models=[MODEL]) as endpoint, engine_at(endpoint.url) as engine:
        engine.submit([chat(0, "hello"), text, ids])
        found = collect(engine, 3)
        calls = {json.dumps(call.body.get("prompt")): call for call in endpoint.calls}
    assert [found[row].text for row in range(3)] == ["hello", "once", "ids [3, 4]"]
    assert calls["null"].path == "/v1/chat/completions"
    assert calls["null"].body == {
        "model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9,
        "temperature": 0.0,
    }  # fmt: skip
    assert calls['"once"'].path == "/v1/completions"
    assert calls['"once"'].body["top_k"] == 4
    first = found[0]
    assert (first.finish_reason, first.attempts, first.num_output_tokens) == ("stop", 1, 3)
    assert first.more is not None
    assert first.more.prompt_tokens == 7


def test_reasoning_tool_calls_refusals_and_cached_tokens_are_kept() -> None:
    call = {"id": "c1", "function": {"name": "f", "arguments": '{"a":1}'}}
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 8},
    }

    def reply(asked: Call) -> Answer:
        match asked.body["messages"][0]["content"]:
            case "think":
                return Answer(chat_answer("4", message={"reasoning_content": "2+2"}, usage=usage))
            case "think again":
                return Answer(chat_answer("4", message={"reasoning": "2+2"}))
            case "call":
                message = {"content": None, "tool_calls": [call]}
                return Answer(
                    chat_answer("", message=message, choice={"finish_reason": "tool_calls"})
                )
        return Answer(chat_answer("", message={"content": None, "refusal": "I will not"}))

    first, second, third, fourth = ask(
        reply, chat(0, "think"), chat(1, "think again"), chat(2, "call"), chat(3, "bad")
    )
    assert first.more is not None
    assert (first.text, first.more.reasoning, first.cached_tokens) == ("4", "2+2", 8)
    assert second.more is not None
    assert second.more.reasoning == "2+2"
    assert third.more is not None
    assert (third.text, third.finish_reason) == (None, "tool_calls")
    assert third.more.tool_calls == (
        {"id": "c1", "type": "function", "function": call["function"]},
    )
    assert (fourth.text, fourth.finish_reason) == ("I will not", "refusal")


def test_samples_come_in_order_with_their_log_probabilities() -> None:
    def choice(index: int, text: str) -> dict[str, Any]:
        top = [{"token": "b", "logprob": -2.0}, {"token": text, "logprob": -0.5}]
        content = [{"token": text, "logprob": -0.5, "top_logprobs": top}]
        message = {"role": "assistant", "content": text}
        return {"index": index, "message": message, "finish_reason": "length",
                "stop_reason": 7, "logprobs": {"content": content}}  # fmt: skip

    choices = [choice(1, "y"), choice(0, "x")]
    request = chat(0)._replace(sampling='{"logprobs":2,"n":2}')
    with serving(lambda call: Answer(chat_answer("", choices=choices))) as endpoint:
        with engine_at(endpoint.url) as engine:
            engine.submit([request])
            outcome = collect(engine, 1)[0]
        body = endpoint.calls[0].body
    assert (body["n"], body["logprobs"], body["top_logprobs"]) == (2, True, 2)
    assert (outcome.text, outcome.finish_reason, outcome.stop_reason) == ("x", "length", "7")
    assert outcome.more is not None
    assert outcome.more.logprobs is not None
    (place,) = outcome.more.logprobs
    assert place.chosen == Logprob(None, -0.5, 1, "x")
    assert place.top == (Logprob(None, -0.5, 1, "x"), Logprob(None, -2.0, 2, "b"))
    assert [sample.text for sample in outcome.more.samples] == ["y"]


def test_log_probabilities_of_text_completions_are_read() -> None:
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-0.1, -9999.0],
                "top_logprobs": [{"a": -0.1, "c": -3.0}, {"c": -0.2}]}  # fmt: skip
    request = Request(0, [1], 4, '{"logprobs":1}', "")
    (outcome,) = ask(lambda call: Answer(text_answer("ab", logprobs=logprobs)), request)
    assert outcome.more is not None
    assert outcome.more.logprobs is not None
    first, second = outcome.more.logprobs
    assert (first.chosen, first.top) == (Logprob(None, -0.1, 1, "a"), (first.chosen,))
    assert second.chosen == Logprob(None, None, None, "b")


def test_a_schema_goes_as_response_format_and_the_rest_as_vllm_takes_it() -> None:
    wanted = ['{"structured_outputs":{"json":"{\\"type\\":\\"object\\"}"}}',
              '{"structured_outputs":{"regex":"a+"}}']  # fmt: skip
    rows = [chat(row)._replace(sampling=sampling) for row, sampling in enumerate(wanted)]
    kwargs = {"continue_final_message": True, "enable_thinking": False}
    rows.append(chat(2, template_kwargs=kwargs, tools=[{"type": "function"}]))
    with serving(echo) as endpoint, engine_at(endpoint.url, body={"user": "me", "temperature": None}) as engine:  # fmt: skip
        engine.submit(rows)
        collect(engine, 3)
    bodies = sorted((call.body for call in endpoint.calls), key=lambda body: "tools" in body)
    formats = [body.get("response_format") for body in bodies]
    schema = {"name": "answer", "schema": {"type": "object"}}
    assert {"type": "json_schema", "json_schema": schema} in formats
    assert {"regex": "a+"} in [body.get("structured_outputs") for body in bodies]
    assert bodies[2]["chat_template_kwargs"] == {"enable_thinking": False}
    assert bodies[2]["continue_final_message"] is True
    assert bodies[2]["add_generation_prompt"] is False
    assert all(body["user"] == "me" and "temperature" not in body for body in bodies)


def first_then_echo(*answers: Answer) -> Callable[[Call], Answer]:
    """The answers given, in turn, and after them what was asked."""
    left = list(answers)
    return lambda call: left.pop(0) if left else echo(call)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(error_body("busy"), 429, {"Retry-After": "0"}),
        Answer(error_body("late"), 408),
        Answer(error_body("early"), 425),
        Answer(error_body("boom"), 500),
        Answer(text="<html>bad gateway</html>", status=502),
        Answer(error_body("loading"), 503),
        Answer(drop=True),
        Answer(chat_answer("never seen whole"), cut=20),
        Answer(text='{"choices": [', status=200),
        Answer({"choices": []}),
        Answer(chat_answer("", choice={"finish_reason": "abort"})),
    ],
    ids=["429", "408", "425", "500", "502", "503", "drop", "cut", "half JSON", "empty", "abort"],
)
def test_what_may_pass_is_tried_again(answer: Answer) -> None:
    (outcome,) = ask(first_then_echo(answer), chat(0, "at last"))
    assert (outcome.text, outcome.error_code, outcome.attempts) == ("at last", None, 2)


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_refused_row_fails_at_once_with_the_servers_words(status: int) -> None:
    refuse = Answer(error_body("the prompt has 99 tokens"), status)
    outcomes = ask(
        lambda call: refuse if call.body["messages"][0]["content"] == "bad" else echo(call),
        chat(0, "bad"), chat(1, "good"),
    )  # fmt: skip
    assert (outcomes[0].error_code, outcomes[0].attempts) == ("engine_refused", 1)
    assert outcomes[0].error == f"HTTP {status}: the prompt has 99 tokens"
    assert outcomes[1].text == "good"


def test_a_row_that_always_breaks_fails_after_its_retries() -> None:
    (outcome,) = ask(lambda call: Answer(error_body("boom"), 500), chat(0), max_retries=2)
    assert (outcome.error_code, outcome.attempts) == ("engine_error", 3)
    assert outcome.error == "HTTP 500: boom (after 3 tries)"


def test_a_row_without_answer_in_time_fails_as_timeout() -> None:
    (outcome,) = ask(lambda call: Answer(after_s=5), chat(0), max_retries=1, timeout_s=0.2)
    assert (outcome.error_code, outcome.attempts) == ("timeout", 2)


def test_retry_after_is_waited_for() -> None:
    began_at = time.monotonic()
    ask(first_then_echo(Answer(error_body("busy"), 429, {"Retry-After": "1"})), chat(0))
    assert time.monotonic() - began_at >= 1.0


def test_too_many_requests_never_fail_a_row() -> None:
    busy = [Answer(error_body("busy"), 429, {"retry-after-ms": "5"})] * 5
    (outcome,) = ask(first_then_echo(*busy), chat(0), max_retries=0)
    assert (outcome.error_code, outcome.attempts) == (None, 6)


def ends_with(error: type[Exception], reply: Callable[[Call], Answer], **options: Any) -> str:
    """The message of the error that ends the run, and that no row came out before."""
    with serving(reply) as endpoint, engine_at(endpoint.url, **options) as engine:
        engine.submit([chat(0)])
        deadline = time.monotonic() + 20
        with pytest.raises(error) as caught:
            while time.monotonic() < deadline:
                assert engine.step(0.1) == []
    return str(caught.value)


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_ends_the_run_and_is_not_shown(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    said = ends_with(JobError, lambda call: Answer(error_body("bad key: sk-very-secret"), status))
    assert "bad key: ***" in said
    assert "secret" not in said


def test_an_unknown_model_ends_the_run() -> None:
    body = error_body("The model `some/model` does not exist.", param="model")
    assert "does not exist" in ends_with(JobError, lambda call: Answer(body, 404))


def test_a_spent_account_ends_the_run_to_be_resumed() -> None:
    body = error_body("no money left", code="insufficient_quota")
    assert "no money left" in ends_with(EngineError, lambda call: Answer(body, 429))


def test_a_server_that_stays_away_ends_the_run_to_be_resumed() -> None:
    said = ends_with(
        EngineError, lambda call: Answer(error_body("loading"), 503), give_up_after_s=1
    )
    assert "gave no answer for 1 s" in said


def test_a_wait_longer_than_our_patience_ends_the_run() -> None:
    busy = Answer(error_body("tomorrow"), 429, {"Retry-After": "86400"})
    assert "asks to wait 86400 s" in ends_with(EngineError, lambda call: busy)


def test_the_model_is_looked_for_at_the_start() -> None:
    with serving(echo, models=["other", "third"]) as endpoint:
        known = pytest.raises(JobError, match=r"has no model some/model\n.*other, third")
        with known, engine_at(endpoint.url):
            pass
        with engine_at(endpoint.url, dialect="openai"):
            pass


def test_an_endpoint_that_is_not_there_is_waited_for_no_longer_than_told() -> None:
    with serving(echo) as endpoint:
        url = endpoint.url
    patient = engine_at(url, give_up_after_s=0.3)
    with pytest.raises(EngineError, match="gave no answer"), patient:
        pass


def test_the_key_and_headers_from_the_environment_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_KEY", "k1")
    monkeypatch.setenv("TENANT", "t1")
    headers = {"X-Tenant": "$TENANT", "X-Plain": "p"}
    with serving(echo) as endpoint:
        with engine_at(endpoint.url, api_key_env="MY_KEY", headers=headers) as engine:
            engine.submit([chat(0)])
            collect(engine, 1)
        sent = endpoint.calls[0].headers
    assert (sent["Authorization"], sent["X-Tenant"], sent["X-Plain"]) == ("Bearer k1", "t1", "p")


def test_rows_are_spread_and_a_dead_endpoint_costs_none() -> None:
    with ExitStack() as stack:
        a = stack.enter_context(serving(lambda call: Answer(echo(call).body, after_s=0.02)))
        b = stack.enter_context(serving(lambda call: Answer(echo(call).body, after_s=0.02)))
        sick = stack.enter_context(serving(lambda call: Answer(error_body("ill"), 500)))
        with serving(echo) as gone:
            away = gone.url
        engine = stack.enter_context(engine_at(a.url, b.url, sick.url, away))
        engine.submit([chat(row) for row in range(200)])
        found = collect(engine, 200)
        assert all(outcome.error_code is None for outcome in found.values())
        assert len(a.calls) + len(b.calls) == 200
        assert min(len(a.calls), len(b.calls)) > 50
        assert len(sick.calls) < 30


def test_no_more_than_the_most_are_in_flight_and_fewer_at_first() -> None:
    with serving(lambda call: Answer(echo(call).body, after_s=0.05)) as endpoint:
        with engine_at(endpoint.url, max_concurrency=20) as engine:
            engine.submit([chat(row) for row in range(150)])
            time.sleep(0.03)
            assert endpoint.most_in_flight <= 8
            collect(engine, 150)
        assert 15 <= endpoint.most_in_flight <= 20


def test_what_is_allowed_per_minute_is_kept() -> None:
    began_at = time.monotonic()
    ask(echo, *[chat(row) for row in range(16)], rpm=600)
    assert time.monotonic() - began_at >= 0.5, "10 at once, then 10 a second"


def test_an_aborted_row_brings_nothing() -> None:
    slow = serving(lambda call: Answer(echo(call).body, after_s=0.3))
    with slow as endpoint, engine_at(endpoint.url, max_concurrency=2) as engine:
        engine.submit([chat(row) for row in range(4)])
        time.sleep(0.1)
        engine.abort([0, 3])
        assert sorted(collect(engine, 2)) == [1, 2]
        assert engine.step(0.3) == []
        gauges = engine.gauges()
    assert (gauges.running, gauges.waiting) == (0, 0)
    assert gauges.output_tokens == 6


def test_the_servers_own_gauges_are_read() -> None:
    with serving(echo) as endpoint:
        endpoint.metrics = "vllm:num_requests_running 3\nvllm:kv_cache_usage_perc 0.4\n"
        with engine_at(endpoint.url) as engine:
            deadline = time.monotonic() + 5
            while engine.gauges().kv_use == 0 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert engine.gauges().kv_use == 0.4


VECTORS = EmbeddingSettings("mean", 3, normalize=False)


def vectors(call: Call) -> Answer:
    """A vector that holds the length of its input; `bad` is refused, whatever is beside it."""
    if "bad" in call.body["input"]:
        return Answer(error_body("bad input"), 400)
    data = [
        {"index": index, "embedding": [float(len(one)), 1.0, 2.0, 3.0]}
        for index, one in enumerate(call.body["input"])
    ]
    return Answer({"data": data[::-1], "usage": {"prompt_tokens": 5, "total_tokens": 5}})


def test_vectors_are_asked_for_together_and_a_bad_input_fails_alone() -> None:
    texts = ["x" * (row + 1) for row in range(40)]
    texts[17] = "bad"
    requests = [
        Request(row, [1] * 3, 0, "{}", json.dumps({"http": {"prompt": text}}))
        for row, text in enumerate(texts)
    ]
    requests.append(Request(40, [5, 6], 0, "{}"))
    with serving(vectors) as endpoint:
        with engine_at(endpoint.url, embedding=VECTORS, inputs_per_request=16) as engine:
            engine.submit(requests)
            found = collect(engine, 41)
        calls = endpoint.calls
    assert calls[0].path == "/v1/embeddings"
    assert Counter(len(call.body["input"]) for call in calls)[16] == 2
    assert (found[17].error_code, found[17].error) == ("engine_refused", "HTTP 400: bad input")
    for row in (0, 16, 18, 39, 40):
        vector = np.frombuffer(found[row].embedding or b"", "<f4")
        expected = 2 if row == 40 else len(texts[row])
        assert vector.tolist() == [expected, 1.0, 2.0], "the first numbers only"


def test_vectors_shorter_than_wanted_end_the_run() -> None:
    wanted = EmbeddingSettings("mean", 5)
    with serving(vectors) as endpoint, engine_at(endpoint.url, embedding=wanted) as engine:
        engine.submit([Request(0, [1], 0, "{}")])
        with pytest.raises(JobError, match="vectors have 4 numbers"):
            for _ in range(100):
                engine.step(0.1)


def test_it_leaves_no_thread_behind() -> None:
    with serving(echo) as endpoint, engine_at(endpoint.url) as engine:
        engine.submit([chat(0)])
        collect(engine, 1)
    assert "http" not in [thread.name for thread in threading.enumerate()]
