from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batchwright.core.beside import LoraSlots
from batchwright.core.errors import JobError
from batchwright.plan.gpus import find_gpu
from batchwright.plan.lora import (
    AdapterFacts,
    check_shapes,
    lora_bytes,
    lora_options,
    lora_slots,
    read_adapter,
)
from batchwright.plan.memory import Sizes, plan_memory
from batchwright.plan.model_facts import model_facts
from tests.unit.plan.model_configs import QWEN_7B

GOOD = {
    "peft_type": "LORA", "r": 16, "lora_alpha": 32, "target_modules": ["q_proj"], "bias": "none",
    "base_model_name_or_path": "Qwen/Qwen2.5-7B-Instruct",
}  # fmt: skip


def test_a_usual_config() -> None:
    assert read_adapter("a", GOOD) == AdapterFacts("a", 16, "Qwen/Qwen2.5-7B-Instruct")
    assert read_adapter("a", {**GOOD, "rank_pattern": {"o_proj": 64}}).rank == 64
    assert read_adapter("a", {**GOOD, "init_lora_weights": "gaussian"}).rank == 16


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"peft_type": "IA3"}, "of type IA3"),
        ({"r": None}, "no r"),
        ({"target_modules": []}, "no target_modules"),
        ({"r": "8"}, "whole number"),
        ({"r": 1024}, "512 at most"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "a bias"),
        ({"modules_to_save": ["lm_head"]}, "whole modules"),
        ({"init_lora_weights": "pissa"}, "base model's own weights"),
        ({"alora_invocation_tokens": [1]}, "activated LoRA"),
    ],
)
def test_what_vllm_would_refuse(change: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words) as raised:
        read_adapter("mine", {**GOOD, **change})
    assert "model.adapters, mine" in str(raised.value)


def test_options_follow_from_the_adapters() -> None:
    facts = [AdapterFacts(str(number), rank, "") for number, rank in enumerate((8, 24))]
    assert lora_options(facts) == {
        "enable_lora": True, "max_loras": 2, "max_lora_rank": 32, "max_cpu_loras": 2,
    }  # fmt: skip
    many = lora_options([AdapterFacts(str(number), 8, "") for number in range(100)])
    assert (many["max_loras"], many["max_cpu_loras"]) == (8, 32)
    assert lora_options([]) == {}
    assert lora_slots({}) is None
    assert lora_slots(many) == LoraSlots(8, 8)


Q_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
Q_B = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"


def test_shapes_that_fit_and_that_do_not() -> None:
    check_shapes("a", {Q_A: [8, 3584], Q_B: [3584, 8]}, QWEN_7B, 8)
    with pytest.raises(JobError, match="takes 4096 numbers, but that layer of the model has 3584"):
        check_shapes("a", {Q_A: [8, 4096]}, QWEN_7B, 8)
    with pytest.raises(JobError, match="larger rank"):
        check_shapes("a", {Q_A: [16, 3584]}, QWEN_7B, 8)
    with pytest.raises(JobError, match="no lora_A"):
        check_shapes("a", {"x.weight": [8, 8]}, QWEN_7B, 8)


def test_memory_of_the_slots() -> None:
    """A 7B model, one slot of rank 16: 16 x the inputs and outputs of its seven matrices, 28 times."""
    facts = replace(model_facts(QWEN_7B, weight_bytes=None), lora=LoraSlots(1, 16))
    per_layer = (
        (3584 + 3584)  # q
        + 2 * (3584 + 512)  # k, v
        + (3584 + 3584)  # o
        + 2 * (3584 + 18944)  # gate, up
        + (18944 + 3584)  # down
    )
    assert lora_bytes(facts, 1, 1) == 16 * 28 * per_layer * 2
    assert lora_bytes(replace(facts, lora=LoraSlots(4, 16)), 1, 1) == 4 * 16 * 28 * per_layer * 2
    assert lora_bytes(facts, 1, 1) / 2 < lora_bytes(facts, 2, 1) < lora_bytes(facts, 1, 1)
    assert lora_bytes(facts, 1, 2) == lora_bytes(facts, 1, 1) / 2
    assert lora_bytes(replace(facts, lora=None), 1, 1) == 0


def test_the_cache_gets_what_the_slots_leave() -> None:
    facts = model_facts(QWEN_7B, weight_bytes=None)
    gpu, sizes = find_gpu("H100"), Sizes(4096, 64, 8192)
    plain = plan_memory(facts, gpu, sizes)
    with_slots = replace(facts, lora=LoraSlots(8, 64))
    room = plan_memory(with_slots, gpu, sizes)
    assert plain.kv_pool - room.kv_pool == lora_bytes(with_slots, 1, 1)
