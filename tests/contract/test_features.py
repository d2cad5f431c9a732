"""What a row may ask for beside its text: the same from every engine."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from batchwright.core.outcomes import Outcome
from batchwright.core.ports import Engine, EngineSettings
from batchwright.core.records import Request
from batchwright.engines.fake import FakeEngine
from batchwright.engines.process import EngineProcess
from tests.support.tiny_lora import make_tiny_lora

ROWS = itertools.count()
PROMPT = [97, 98, 99, 100]


def adapters(folder: Path) -> dict[str, str]:
    """Two that work, and one that no engine can load."""
    broken = make_tiny_lora(folder / "broken", seed=3)
    (broken / "adapter_model.safetensors").write_bytes(b"not a header")
    one, two = (make_tiny_lora(folder / name, seed=seed) for seed, name in ((1, "one"), (2, "two")))
    return {"one": str(one), "two": str(two), "broken": str(broken)}


def fake_engine(_: pytest.FixtureRequest, folder: Path) -> tuple[Engine, EngineSettings]:
    named = adapters(folder)
    del named["broken"]  # it reads none of them
    return FakeEngine(), EngineSettings("fake", "", 16, 512, (), 256, adapters=named)


def vllm_engine(request: pytest.FixtureRequest, folder: Path) -> tuple[Engine, EngineSettings]:
    model: Path = request.getfixturevalue("tiny_model")
    vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
    options = {
        "dtype": "float32",
        "kv_cache_memory_bytes": 64 << 20,
        "scheduling_policy": "priority",
        "enable_lora": True,
        "max_loras": 1,
        "max_lora_rank": 8,
    }
    settings = EngineSettings(
        "vllm", str(model), 4, 512, (2,), vocab_size, options, adapters=adapters(folder)
    )
    target = "batchwright.engines.vllm:VllmEngine"
    return EngineProcess(target, log_path=folder / "engine.log", start_timeout_s=240), settings


@pytest.fixture(
    scope="module", params=[fake_engine, pytest.param(vllm_engine, marks=pytest.mark.vllm)]
)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    make: Callable[[Any, Path], tuple[Engine, EngineSettings]] = request.param
    engine, settings = make(request, tmp_path_factory.mktemp("engine"))
    engine.start(settings)
    yield engine
    engine.stop()


def ask(
    engine: Engine,
    *sampling: dict[str, Any],
    max_tokens: int = 6,
    to: Sequence[str | None] = (),
    within_s: float = 60,
) -> list[Outcome]:
    """One row for each set of sampling fields; its outcomes in order of the rows."""
    rows = [next(ROWS) for _ in sampling]
    extras = [json.dumps({"adapter": name}) if name else "" for name in to or [None] * len(rows)]
    engine.submit(
        [
            Request(row, PROMPT, max_tokens, json.dumps({"ignore_eos": True, **fields}), extra)
            for row, fields, extra in zip(rows, sampling, extras, strict=True)
        ]
    )
    found: dict[int, Outcome] = {}
    deadline = time.monotonic() + within_s
    while len(found) < len(rows) and time.monotonic() < deadline:
        found |= {outcome.row: outcome for outcome in engine.step(0.5)}
    return [found[row] for row in rows]


def test_several_samples_are_all_kept(engine: Engine) -> None:
    several, one = ask(engine, {"n": 3, "seed": 5, "temperature": 1.0}, {"temperature": 0.0})
    assert several.error_code is None
    assert several.more is not None
    answers = [several.token_ids, *(sample.token_ids for sample in several.more.samples)]
    assert [len(ids) for ids in answers] == [6, 6, 6]
    assert len({tuple(ids) for ids in answers}) > 1
    assert several.num_output_tokens == 18
    assert {sample.finish_reason for sample in several.more.samples} == {"length"}
    assert one.more is None


@pytest.mark.parametrize("num_top", [0, 1, 3])
def test_log_probabilities(engine: Engine, num_top: int) -> None:
    (outcome,) = ask(engine, {"logprobs": num_top, "temperature": 0.0})
    assert outcome.more is not None
    places = outcome.more.logprobs
    assert places is not None
    assert [place.chosen.token_id for place in places] == list(outcome.token_ids)
    for place in places:
        assert len(place.top) == num_top
        assert place.chosen.rank == 1  # greedy
        values = [one.logprob for one in place.top]
        assert all(value is not None and value <= 0 for value in values)
        assert values == sorted(values, key=lambda value: -(value or 0))
        if place.top:
            assert place.top[0] == place.chosen


def test_samples_have_log_probabilities_of_their_own(engine: Engine) -> None:
    (outcome,) = ask(engine, {"n": 2, "logprobs": 2, "seed": 1, "temperature": 1.0})
    assert outcome.more is not None
    (other,) = outcome.more.samples
    assert other.more is not None
    assert other.more.logprobs is not None
    assert [place.chosen.token_id for place in other.more.logprobs] == list(other.token_ids)


def test_a_chosen_token_that_is_not_among_the_likeliest(engine: Engine) -> None:
    if isinstance(engine, FakeEngine):
        pytest.skip("its chosen token is the likeliest")
    (outcome,) = ask(engine, {"logprobs": 1, "temperature": 2.0, "seed": 3}, max_tokens=40)
    assert outcome.more is not None
    assert outcome.more.logprobs is not None
    beside = [place for place in outcome.more.logprobs if (place.chosen.rank or 0) > 1]
    assert beside
    assert all(len(place.top) == 1 and place.top[0].rank == 1 for place in beside)


def test_minus_infinity_is_none(engine: Engine) -> None:
    if isinstance(engine, FakeEngine):
        pytest.skip("it has none")
    (outcome,) = ask(engine, {"allowed_token_ids": [300], "logprobs": 3, "temperature": 1.0})
    assert list(outcome.token_ids) == [300] * 6
    assert outcome.more is not None
    assert outcome.more.logprobs is not None
    for place in outcome.more.logprobs:
        assert all(one.logprob is None or one.logprob <= 0 for one in place.top)


def test_fields_of_one_row_do_not_touch_its_neighbours(engine: Engine) -> None:
    if isinstance(engine, FakeEngine):
        pytest.skip("its answers do not come from probabilities")
    plain, biased, again = ask(
        engine,
        {"temperature": 0.0},
        {"temperature": 0.0, "logit_bias": {"777": 100.0}},
        {"temperature": 0.0},
    )
    assert list(biased.token_ids) == [777] * 6
    assert plain.token_ids == again.token_ids
    assert 777 not in plain.token_ids


def test_rows_of_a_smaller_priority_go_first(engine: Engine) -> None:
    if isinstance(engine, FakeEngine):
        pytest.skip("it takes rows in the order in which they came")
    rows = [next(ROWS) for _ in range(60)]
    urgent = set(rows[-10:])
    engine.submit(
        [
            Request(
                row,
                [*PROMPT, row % 90],
                40,
                json.dumps({"ignore_eos": True, "priority": 0 if row in urgent else 5}),
            )
            for row in rows
        ]
    )
    finished: list[int] = []
    deadline = time.monotonic() + 120
    while len(finished) < len(rows) and time.monotonic() < deadline:
        finished += [outcome.row for outcome in engine.step(0.5)]
    mean = sum(place for place, row in enumerate(finished) if row in urgent) / len(urgent)
    assert mean < 20  # by arrival it would be 54


GREEDY = {"temperature": 0.0}


def test_each_row_is_answered_by_its_adapter_also_in_a_mixed_batch(engine: Engine) -> None:
    apart = {
        name: ask(engine, GREEDY, max_tokens=20, to=[name])[0].token_ids
        for name in (None, "one", "two")
    }
    assert len({tuple(ids) for ids in apart.values()}) == 3
    names = [None, "one", "two", "one", None, "two"]
    mixed = ask(engine, *[GREEDY] * len(names), max_tokens=20, to=names)
    for name, outcome in zip(names, mixed, strict=True):
        assert outcome.error_code is None
        assert list(outcome.token_ids) == list(apart[name])


def test_an_adapter_that_is_not_there_fails_its_own_rows(engine: Engine) -> None:
    lost, fine, own = ask(engine, GREEDY, GREEDY, GREEDY, to=["three", "one", None])
    assert lost.error_code == "engine_refused"
    assert "no adapter three" in (lost.error or "")
    assert (fine.error_code, own.error_code) == (None, None)


def test_an_adapter_that_cannot_be_loaded_fails_its_own_rows(engine: Engine) -> None:
    if isinstance(engine, FakeEngine):
        pytest.skip("it loads none")
    broken, fine, again = ask(engine, GREEDY, GREEDY, GREEDY, to=["broken", "two", "broken"])
    assert (broken.error_code, again.error_code) == ("engine_refused", "engine_refused")
    assert "cannot load the adapter broken" in (broken.error or "")
    assert fine.error_code is None


@pytest.fixture
def drafting(engine: Engine, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """The same model with speculative decoding; beside logit_bias it cannot be on."""
    if isinstance(engine, FakeEngine):
        pytest.skip("it proposes nothing")
    other, settings = vllm_engine(request, tmp_path)
    settings.options["speculative_config"] = {
        "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2,
        "prompt_lookup_min": 1,
    }  # fmt: skip
    other.start(settings)
    yield other
    other.stop()


def test_speculation_changes_no_greedy_answer(engine: Engine, drafting: Engine) -> None:
    names = [None, "one", "two", None]
    # The last one can only repeat itself, so that what is proposed is right.
    asked = [GREEDY, GREEDY, GREEDY, {**GREEDY, "allowed_token_ids": [300]}]
    plain = ask(engine, *asked, max_tokens=40, to=names)
    faster = ask(drafting, *asked, max_tokens=40, to=names, within_s=240)  # compiles at first
    assert [list(one.token_ids) for one in faster] == [list(one.token_ids) for one in plain]
    assert engine.gauges().drafted_tokens == 0
    gauges = drafting.gauges()
    assert gauges.drafted_tokens >= gauges.accepted_tokens > 0
    (refused,) = ask(drafting, {**GREEDY, "logit_bias": {"777": 5.0}})
    assert refused.error_code == "engine_refused"
    assert "speculative decoding" in (refused.error or "")
