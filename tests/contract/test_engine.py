"""What every engine must do, in this process or in a child, with a model or without."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batchwright.core.errors import EngineDied, JobError
from batchwright.core.outcomes import Outcome
from batchwright.core.ports import Engine, EngineSettings
from batchwright.core.records import Request
from batchwright.engines.fake import FakeEngine
from batchwright.engines.feeder import Supervisor
from batchwright.engines.process import EngineProcess

GREEDY = '{"temperature":0.0}'
LONG = '{"ignore_eos":true,"temperature":0.0}'
ROWS = itertools.count()


@dataclass
class Case:
    """One adapter: how to make it, and what it is started with."""

    make: Callable[[], Engine]
    settings: EngineSettings
    pid: int = 0


def fake_settings() -> EngineSettings:
    # Steps take a moment, as a model's do: what is aborted must not have finished already.
    options = {"seconds_per_step": 0.005, "rows_per_step": 4}
    return EngineSettings("fake", "", 16, 512, (), 256, options)


def vllm_settings(model: Path) -> EngineSettings:
    vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
    options = {"dtype": "float32", "kv_cache_memory_bytes": 64 << 20}
    return EngineSettings("vllm", str(model), 16, 512, (2,), vocab_size, options)


@pytest.fixture(
    scope="module",
    params=["fake", "fake in a child", pytest.param("vllm in a child", marks=pytest.mark.vllm)],
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    log_path = tmp_path_factory.mktemp("engine") / "engine.log"
    if request.param == "fake":
        return Case(FakeEngine, fake_settings())
    if request.param == "fake in a child":
        name = "batchwright.engines.fake:FakeEngine"
        return Case(lambda: EngineProcess(name, log_path=log_path), fake_settings())
    name = "batchwright.engines.vllm:VllmEngine"
    settings = vllm_settings(request.getfixturevalue("tiny_model"))
    return Case(lambda: EngineProcess(name, log_path=log_path, start_timeout_s=240), settings)


@pytest.fixture(scope="module")
def engine(case: Case) -> Iterator[Engine]:
    """One started engine for all tests of a case: a model takes its time to start."""
    engine = case.make()
    engine.preload(case.settings)
    info = engine.start(case.settings)
    assert info.name == case.settings.kind
    assert info.version
    case.pid = info.pid
    yield engine
    engine.stop()
    engine.stop()


def ask(token_ids: list[int], sampling: str = GREEDY, max_tokens: int = 12) -> Request:
    return Request(next(ROWS), token_ids, max_tokens, sampling)


def prompts(count: int) -> list[list[int]]:
    return [[97 + number % 26, 98 + number // 26, 99, 100] for number in range(count)]


def collect(engine: Engine, count: int) -> dict[int, Outcome]:
    """Step until so many outcomes are there; none may come twice."""
    outcomes: list[Outcome] = []
    deadline = time.monotonic() + 60
    while len(outcomes) < count and time.monotonic() < deadline:
        outcomes += engine.step(0.5)
    by_row = {outcome.row: outcome for outcome in outcomes}
    assert len(by_row) == len(outcomes) == count
    return by_row


def answers(engine: Engine, requests: list[Request]) -> list[Outcome]:
    engine.submit(requests)
    by_row = collect(engine, len(requests))
    return [by_row[request.row] for request in requests]


def test_every_row_comes_out_once_and_bad_ones_fail_alone(case: Case, engine: Engine) -> None:
    good = [ask(prompt) for prompt in prompts(57)]
    bad = [ask([97] * 600), ask([case.settings.vocab_size + 5]), ask([])]
    outcomes = answers(engine, [*good[:20], *bad, *good[20:]])
    failed = outcomes[20:23]
    assert [outcome.error_code for outcome in failed] == ["engine_refused"] * 3
    assert all(outcome.error for outcome in failed)
    for outcome in outcomes[:20] + outcomes[23:]:
        assert outcome.error_code is None
        assert 1 <= len(outcome.token_ids) <= 12
        assert all(0 <= token_id < case.settings.vocab_size for token_id in outcome.token_ids)
        assert outcome.finish_reason in ("stop", "length")
        assert outcome.text is None
    assert engine.step(0.0) == []


@pytest.mark.parametrize("max_tokens", [1, 3, 40])
def test_max_tokens_is_kept(engine: Engine, max_tokens: int) -> None:
    outcomes = answers(engine, [ask(prompt, LONG, max_tokens) for prompt in prompts(3)])
    for outcome in outcomes:
        assert (len(outcome.token_ids), outcome.finish_reason) == (max_tokens, "length")


def test_aborted_rows_do_not_come_out(engine: Engine) -> None:
    requests = [ask(prompt, LONG, 400) for prompt in prompts(30)]
    engine.submit(requests)
    engine.abort([request.row for request in requests[3:]])
    by_row = collect(engine, 3)
    assert sorted(by_row) == [request.row for request in requests[:3]]
    assert engine.step(0.1) == []
    engine.abort([10**9])  # unknown rows are none of its business
    assert len(answers(engine, [ask([97])])) == 1


def test_greedy_answers_repeat_in_another_order(engine: Engine) -> None:
    first = answers(engine, [ask(prompt) for prompt in prompts(5)])
    again = answers(engine, [ask(prompt) for prompt in reversed(prompts(5))])
    assert [outcome.token_ids for outcome in first] == [
        outcome.token_ids for outcome in reversed(again)
    ]


def test_seeded_answers_repeat_and_differ_by_seed(engine: Engine) -> None:
    def seeded(seed: int) -> list[int]:
        sampling = f'{{"seed":{seed},"temperature":1.0}}'
        return list(answers(engine, [ask([97, 98, 99], sampling)])[0].token_ids)

    assert seeded(1) == seeded(1)
    assert len({tuple(seeded(seed)) for seed in range(5)}) > 1


def test_stop_texts_cut_the_text_that_the_engine_returns(engine: Engine) -> None:
    def stopped(**fields: Any) -> Outcome:
        sampling = json.dumps({"temperature": 0.0, "ignore_eos": True, **fields})
        return answers(engine, [ask([97, 98], sampling, 16)])[0]

    whole = stopped(stop=["\0never"]).text
    assert whole
    stop = next(letter for letter in whole[1:] if letter.isascii() and letter.isprintable())
    end = whole.index(stop)
    cut = stopped(stop=[stop])
    assert (cut.text, cut.finish_reason, cut.stop_reason) == (whole[:end], "stop", stop)
    kept = stopped(stop=[stop, "\0never"], include_stop_str_in_output=True)
    assert kept.text == whole[: end + len(stop)]


def test_sampling_that_the_engine_cannot_take_fails_the_row(engine: Engine) -> None:
    outcomes = answers(engine, [ask([97], '{"stop":[""]}'), ask([97])])
    assert [outcome.error_code for outcome in outcomes] == ["engine_refused", None]


def test_steps_are_counted(engine: Engine) -> None:
    before = engine.gauges().steps
    answers(engine, [ask(prompt) for prompt in prompts(3)])
    gauges = engine.gauges()
    assert gauges.steps > before
    assert gauges.running == gauges.waiting == 0


def test_tokens_are_counted_without_those_that_were_cached(engine: Engine) -> None:
    before = engine.gauges()
    requests = [ask([*prompt, *range(97, 123)]) for prompt in prompts(7)]
    outcomes = answers(engine, requests)
    gauges = engine.gauges()
    made = sum(len(outcome.token_ids) for outcome in outcomes)
    computed = 30 * 7 - sum(outcome.cached_tokens for outcome in outcomes)
    assert gauges.output_tokens - before.output_tokens == made
    assert gauges.prompt_tokens - before.prompt_tokens == computed


def test_unknown_options_are_refused_before_anything_is_loaded(case: Case) -> None:
    if case.settings.kind == "vllm":
        pytest.skip("takes one more import of vLLM; see tests/unit/engines/test_vllm.py")
    settings = EngineSettings("fake", "", 1, 100, options={"kv_token": 1})
    with pytest.raises(JobError, match="Did you mean kv_tokens"):
        case.make().start(settings)


def test_death_raises_and_a_fresh_start_works(case: Case, engine: Engine) -> None:
    if not case.pid or case.pid == os.getpid():
        pytest.skip("runs in this process")
    if case.settings.kind == "vllm":
        pytest.skip("takes one more start of vLLM; the supervised engine below does the same")
    engine.submit([ask(prompt, LONG, 400) for prompt in prompts(40)])
    os.kill(case.pid, signal.SIGKILL)
    with pytest.raises(EngineDied):
        collect(engine, 41)
    case.pid = engine.start(case.settings).pid
    assert len(answers(engine, [ask([97])])) == 1


def test_a_supervised_engine_loses_nothing_when_killed(case: Case, engine: Engine) -> None:
    if not case.pid or case.pid == os.getpid():
        pytest.skip("runs in this process")
    engine.stop()  # one model in memory at a time
    supervisor = Supervisor(case.make, case.settings)
    pid = supervisor.start().pid
    waiting = [ask(prompt, LONG, 60) for prompt in prompts(60)]
    rows = [request.row for request in waiting]
    outcomes: list[Outcome] = []
    try:
        while waiting or supervisor.in_flight:
            room = supervisor.room()
            supervisor.submit(waiting[:room])
            del waiting[:room]
            outcomes += supervisor.step(0.5)
            if pid and len(outcomes) >= 4:
                os.kill(pid, signal.SIGKILL)
                pid = 0
    finally:
        supervisor.stop()
    assert sorted(outcome.row for outcome in outcomes) == rows
    assert all(len(outcome.token_ids) == 60 for outcome in outcomes)
    assert {outcome.attempts for outcome in outcomes} == {1, 2}
    assert supervisor.restarts == 1
