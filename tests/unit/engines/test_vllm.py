"""What only the vLLM engine does: stop tokens, cached prompts, options by vLLM's names."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchwright.core.errors import JobError
from batchwright.core.outcomes import Outcome
from batchwright.core.ports import EngineSettings
from batchwright.core.records import Request
from batchwright.engines.process import EngineProcess

pytestmark = pytest.mark.vllm

NAME = "batchwright.engines.vllm:VllmEngine"
END = 7  # an ordinary token of the tiny model, made an end token here
ROWS = itertools.count()


def settings(model: Path, **options: Any) -> EngineSettings:
    options = {"dtype": "float32", "kv_cache_memory_bytes": 64 << 20, **options}
    return EngineSettings("vllm", str(model), 16, 512, (2, END), 4096, options)


@pytest.fixture(scope="module")
def engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    engine = EngineProcess(NAME, log_path=tmp_path_factory.mktemp("vllm") / "engine.log")
    info = engine.start(settings(tiny_model))
    assert (info.name, info.device) == ("vllm", "cpu")
    assert info.kv_tokens > 10_000
    yield engine
    engine.stop()


def answer(engine: EngineProcess, prompt: list[int], **sampling: Any) -> Outcome:
    text = json.dumps({"temperature": 0.0, **sampling})
    engine.submit([Request(next(ROWS), prompt, 12, text)])
    outcomes: list[Outcome] = []
    while not outcomes:
        outcomes = engine.step(10.0)
    assert len(outcomes) == 1
    return outcomes[0]._replace(token_ids=list(outcomes[0].token_ids))


def test_a_stop_token_is_the_last_id_and_the_reason(engine: EngineProcess) -> None:
    whole = answer(engine, [50, 51, 52], ignore_eos=True)
    assert (len(whole.token_ids), whole.finish_reason, whole.stop_reason) == (12, "length", None)
    wanted = whole.token_ids[4]
    cut = answer(engine, [50, 51, 52], ignore_eos=True, stop_token_ids=[wanted])
    assert cut.token_ids == whole.token_ids[: whole.token_ids.index(wanted) + 1]
    assert (cut.finish_reason, cut.stop_reason, cut.text) == ("stop", str(wanted), None)


@pytest.mark.parametrize("end", [2, END])
def test_every_end_token_of_the_settings_ends_the_answer(engine: EngineProcess, end: int) -> None:
    outcome = answer(engine, [50, 51], allowed_token_ids=[end])
    assert (outcome.token_ids, outcome.finish_reason) == ([end], "stop")
    assert outcome.stop_reason == str(end)
    ignored = answer(engine, [50, 51], allowed_token_ids=[end], ignore_eos=True)
    assert (ignored.token_ids, ignored.finish_reason) == ([end] * 12, "length")


def test_logit_bias_and_bad_words(engine: EngineProcess) -> None:
    assert answer(engine, [50], logit_bias={"99": 100.0}, ignore_eos=True).token_ids == [99] * 12
    assert answer(engine, [50], bad_words=["the"]).error_code is None


def test_a_repeated_prompt_is_cached(engine: EngineProcess) -> None:
    prompt = list(range(100, 400))
    assert answer(engine, prompt).cached_tokens == 0
    assert answer(engine, prompt).cached_tokens == 256  # whole blocks of 128


def test_the_time_since_the_first_token_is_told_of_one_sample_and_of_several(
    engine: EngineProcess,
) -> None:
    for samples in (1, 2):
        begun = time.monotonic()
        outcome = answer(engine, [50, 51], ignore_eos=True, temperature=1.0, n=samples)
        assert outcome.generating_s is not None
        assert 0 < outcome.generating_s < time.monotonic() - begun
    assert answer(engine, [50], temperature=-1.0).generating_s is None


def test_bad_sampling_fails_the_row_with_vllms_own_words(engine: EngineProcess) -> None:
    outcome = answer(engine, [50], temperature=-1.0)
    assert outcome.error_code == "engine_refused"
    assert "temperature" in str(outcome.error)
    outcome = answer(engine, [50], unheard_of=1)
    assert "unheard_of" in str(outcome.error)


def test_unknown_options_are_refused_with_the_nearest_name(
    tiny_model: Path, tmp_path: Path
) -> None:
    engine = EngineProcess(NAME, log_path=tmp_path / "engine.log")
    with pytest.raises(JobError, match="Did you mean gpu_memory_utilization"):
        engine.start(settings(tiny_model, gpu_memory_utilisation=0.5))
