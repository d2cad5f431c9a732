from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batchwright.core.beside import Draft
from batchwright.core.errors import JobError
from batchwright.plan.gpus import find_gpu
from batchwright.plan.memory import Sizes, activation_bytes, blocks_of_row, plan_memory
from batchwright.plan.model_facts import model_facts
from batchwright.plan.speculation import Speculation, draft_of, read_speculation
from tests.unit.plan.model_configs import QWEN_05B, QWEN_7B

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}


def read(config: Any) -> Speculation | None:
    return read_speculation({"speculative_config": config}, "org/base")


def test_forms_that_are_fine() -> None:
    assert read_speculation({}, "org/base") is None
    assert read(NGRAM) == Speculation("ngram", 4, None)
    assert read({"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}) == (
        Speculation("eagle3", 3, "org/head")
    )
    assert read({"model": "org/draft"}) == Speculation("", None, "org/draft")
    assert read({"method": "mtp"}) == Speculation("mtp", None, None)
    assert read({"method": "deepseek_mtp", "num_speculative_tokens": 1})
    found = read({"method": "draft_model", "model": "org/small", "num_speculative_tokens": 5})
    assert found
    assert found.has_own_weights
    assert not Speculation("ngram", 4, None).has_own_weights


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("ngram", "it is an object"),
        ({"num_speculative_tokens": 4}, "neither a method nor a draft model"),
        ({"method": "ngramm", "num_speculative_tokens": 4}, "did you mean ngram"),
        ({"method": "ngram"}, "needs num_speculative_tokens"),
        ({"method": "eagle3", "num_speculative_tokens": 3}, "needs model"),
        (
            {"method": "draft_model", "model": "org/base", "num_speculative_tokens": 3},
            "model itself",
        ),
        ({**NGRAM, "num_speculative_tokens": 0}, "at least 1"),
        ({**NGRAM, "num_speculative_tokens": True}, "at least 1"),
        ({**NGRAM, "prompt_lookup_min": 5}, "above prompt_lookup_max"),
        ({**NGRAM, "tensor_parallel_size": 2}, "not the draft's"),
        ({"method": 3, "model": "m"}, "method is text"),
    ],
)
def test_forms_that_are_wrong(config: Any, words: str) -> None:
    with pytest.raises(JobError, match=words) as raised:
        read(config)
    assert "engine.options.speculative_config" in str(raised.value)


def test_what_a_draft_takes() -> None:
    model = model_facts(QWEN_7B, weight_bytes=None)
    small = model_facts(QWEN_05B, weight_bytes=None)
    draft = draft_of(Speculation("draft_model", 5, "small"), model, QWEN_7B, small)
    assert draft.weight_bytes == small.weight_bytes
    assert draft.kv_bytes_per_token == small.kv_bytes_per_token
    assert draft_of(Speculation("ngram", 4, None), model, QWEN_7B, None) == Draft("ngram", 4)
    mtp = draft_of(Speculation("mtp", None, None), model, {"num_nextn_predict_layers": 1}, None)
    assert (mtp.tokens, mtp.layers, mtp.weight_bytes) == (1, 1, 0)
    assert mtp.kv_bytes_per_token == model.kv_bytes_per_token / model.layers
    with pytest.raises(JobError, match="num_speculative_tokens is missing"):
        draft_of(Speculation("mtp", None, None), model, QWEN_7B, None)


def test_a_draft_takes_memory_and_cache() -> None:
    model = model_facts(QWEN_7B, weight_bytes=None)
    small = model_facts(QWEN_05B, weight_bytes=None)
    gpu, sizes = find_gpu("H100"), Sizes(4096, 64, 8192)
    plain = plan_memory(model, gpu, sizes)
    draft = draft_of(Speculation("draft_model", 4, "small"), model, QWEN_7B, small)
    beside = replace(model, draft=draft)
    found = plan_memory(beside, gpu, sizes)
    assert found.weights - plain.weights == small.weight_bytes
    assert found.kv_per_token - plain.kv_per_token == small.kv_bytes_per_token
    assert found.capacity_tokens < plain.capacity_tokens
    ngram = replace(model, draft=Draft("ngram", 4))
    assert blocks_of_row(ngram, sizes, 100) - blocks_of_row(model, sizes, 100) == 4 / 16
    wide = Sizes(4096, 1024, 8192)
    assert activation_bytes(ngram, wide) > activation_bytes(model, wide)
