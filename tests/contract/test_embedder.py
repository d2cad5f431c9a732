"""What every engine that makes embeddings must do, with a model or without."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from batchwright.core.errors import EngineDied
from batchwright.core.outcomes import Outcome
from batchwright.core.ports import Engine, EngineSettings
from batchwright.core.records import Request
from batchwright.core.tasks import TaskSettings
from batchwright.core.vectors import EmbeddingSettings
from batchwright.engines.fake import FakeEngine
from batchwright.engines.process import EngineProcess
from batchwright.wiring import engine_target
from tests.support.tiny_bert import CLS, CONTEXT, SEP, VOCAB

ROWS = itertools.count()
DIMENSIONS = 24


@dataclass
class Case:
    """One adapter: how to make it, and what it is started with."""

    make: Callable[[], Engine]
    settings: EngineSettings
    pid: int = 0


def settings(kind: str, model: Path | str, vocab_size: int) -> EngineSettings:
    options = {
        "fake": {"seconds_per_step": 0.005, "rows_per_step": 4},
        "torch": {"max_batch_tokens": 512},
        "vllm": {"dtype": "float32"},
    }[kind]
    task = TaskSettings("embed", EmbeddingSettings("mean", DIMENSIONS))
    return EngineSettings(kind, str(model), 64, CONTEXT, (), vocab_size, options, task)


@pytest.fixture(
    scope="module",
    params=[
        "fake",
        pytest.param("torch", marks=pytest.mark.vllm),  # the mark of the extra that brings both
        pytest.param("vllm", marks=pytest.mark.vllm),
    ],
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    kind: str = request.param
    if kind == "fake":
        return Case(FakeEngine, settings(kind, "", 256))
    log_path = tmp_path_factory.mktemp("engine") / "engine.log"
    target = engine_target(kind, "embed")
    model: Path = request.getfixturevalue("tiny_bert")
    return Case(
        lambda: EngineProcess(target, log_path=log_path, start_timeout_s=280),
        settings(kind, model, VOCAB),
    )


@pytest.fixture(scope="module")
def engine(case: Case) -> Iterator[Engine]:
    engine = case.make()
    info = engine.start(case.settings)
    assert info.name == case.settings.kind
    case.pid = info.pid
    yield engine
    engine.stop()
    engine.stop()


def ask(token_ids: list[int]) -> Request:
    return Request(next(ROWS), token_ids, 0, "{}")


def prompts(count: int) -> list[list[int]]:
    return [[CLS, *[5 + (n * 7 + at) % 80 for at in range(n % 50 + 1)], SEP] for n in range(count)]


def collect(engine: Engine, count: int) -> dict[int, Outcome]:
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


def vectors(outcomes: list[Outcome]) -> np.ndarray:
    return np.stack([np.frombuffer(one.embedding or b"", np.float32) for one in outcomes])


def test_every_row_comes_out_once_and_bad_ones_fail_alone(case: Case, engine: Engine) -> None:
    good = [ask(prompt) for prompt in prompts(57)]
    bad = [ask([9] * (CONTEXT + 1)), ask([case.settings.vocab_size + 5]), ask([])]
    outcomes = answers(engine, [*good[:20], *bad, *good[20:]])
    assert [one.error_code for one in outcomes[20:23]] == ["engine_refused"] * 3
    kept = outcomes[:20] + outcomes[23:]
    assert all(one.error_code is None and not one.token_ids for one in kept)
    made = vectors(kept)
    assert made.shape == (57, DIMENSIONS)
    assert np.linalg.norm(made, axis=1) == pytest.approx(1, abs=1e-5)
    assert len(np.unique(made.round(4), axis=0)) > 40
    assert engine.step(0.0) == []


def test_an_input_as_long_as_the_context_is_read(engine: Engine) -> None:
    (outcome,) = answers(engine, [ask([CLS, *[9] * (CONTEXT - 2), SEP])])
    assert outcome.error_code is None


def test_a_vector_depends_on_its_row_alone(engine: Engine) -> None:
    first = vectors(answers(engine, [ask(prompt) for prompt in prompts(30)]))
    again = vectors(answers(engine, [ask(prompt) for prompt in reversed(prompts(40))]))
    np.testing.assert_allclose(first, again[::-1][:30], atol=1e-5)


def test_aborted_rows_do_not_come_out(engine: Engine) -> None:
    requests = [ask(prompt) for prompt in prompts(30)]
    engine.submit(requests)
    engine.abort([request.row for request in requests[3:]])
    kept = ask([CLS, 9, SEP])
    engine.submit([kept])
    wanted = {request.row for request in [*requests[:3], kept]}
    seen: set[int] = set()
    deadline = time.monotonic() + 30
    while not wanted <= seen and time.monotonic() < deadline:
        seen |= {one.row for one in engine.step(0.5)}
    # Through a pipe, rows may be finished before the message to forget them is read.
    assert wanted <= seen


def test_steps_and_tokens_are_counted(engine: Engine) -> None:
    before = engine.gauges()
    asked = prompts(6)
    answers(engine, [ask(prompt) for prompt in asked])
    gauges = engine.gauges()
    assert gauges.steps > before.steps
    assert gauges.prompt_tokens - before.prompt_tokens == sum(map(len, asked))
    assert gauges.running == gauges.waiting == 0


def test_death_raises_and_a_fresh_start_works(case: Case, engine: Engine) -> None:
    if not case.pid or case.pid == os.getpid():
        pytest.skip("runs in this process")
    if case.settings.kind == "vllm":
        pytest.skip("takes one more start of vLLM; the process is the same for all engines")
    os.kill(case.pid, signal.SIGKILL)
    engine.submit([ask(prompt) for prompt in prompts(4)])
    with pytest.raises(EngineDied):
        collect(engine, 5)
    case.pid = engine.start(case.settings).pid
    assert answers(engine, [ask([CLS, 9, SEP])])[0].error_code is None
