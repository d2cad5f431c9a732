from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batchwright.plan.rules import RULES
from batchwright.plan.supported import READ_IN, Situation, parse_version, refusals

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4}


def options(**given: Any) -> dict[str, Any]:
    return {"options": given}


# For each rule: a situation that breaks it, and what to change so that it does not.
BOTH_SIDES: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "unknown_method": [
        (options(quantization="bitsandbytes"), options(quantization="fp8_per_tensor")),
        ({"quantization": {"quant_method": "bitsandbytes"}}, {"plugins": True}),
        ({"quantization": {"quant_method": "hqq"}}, {"quantization": GPTQ}),
    ],
    "fp8_on_load": [(options(quantization="fp8"), {"quantization": {"quant_method": "fp8"}})],
    "old_card": [
        ({"quantization": {"quant_method": "mxfp4"}, "capability": 75}, {"capability": 80}),
        ({"quantization": AWQ, "capability": 70}, {"capability": 75}),
        (
            {"quantization": {"quant_method": "modelopt", "quant_algo": "FP8"}, "capability": 75},
            {"quantization": {"quant_method": "modelopt", "quant_algo": "NVFP4"}},
        ),
    ],
    "wrong_dtype": [
        ({"quantization": AWQ, "dtype": "float32"}, {"dtype": "bfloat16"}),
        ({"quantization": {"quant_method": "mxfp4"}, "dtype": "half"}, {"dtype": "auto"}),
    ],
    "no_bfloat16": [({"dtype": "bfloat16", "capability": 75}, {"capability": 80})],
    "gptq_bits": [
        ({"quantization": {**GPTQ, "bits": 3}}, {"quantization": {**GPTQ, "bits": 8}}),
        ({"quantization": {**GPTQ, "sym": False}}, {"quantization": GPTQ}),
    ],
    "awq_bits": [({"quantization": {**AWQ, "bits": 8}}, {"quantization": AWQ})],
    "deprecated": [
        ({"quantization": {"quant_method": "fbgemm_fp8"}},
         options(allow_deprecated_quantization=True)),
    ],
    "flash_attention": [
        ({**options(kv_cache_dtype="fp8", attention_backend="FLASH_ATTN"), "capability": 89},
         {"capability": 90}),
        (options(kv_cache_dtype="fp8_e5m2", attention_config={"backend": "flash_attn"}),
         options(kv_cache_dtype="fp8_e5m2")),
    ],
    "triton_attention": [
        ({**options(kv_cache_dtype="fp8", attention_backend="TRITON_ATTN"), "capability": 80},
         {"capability": 89}),
    ],
    "cpu_cache": [
        ({**options(kv_cache_dtype="fp8"), "on_cpu": True, "head_dim": 80}, {"head_dim": 64}),
    ],
    "rank_not_offered": [
        (options(enable_lora=True, max_lora_rank=24), options(enable_lora=True, max_lora_rank=320)),
    ],
    "rank_too_small": [
        ({**options(enable_lora=True, max_lora_rank=16), "adapter_ranks": (8, 32)},
         {"adapter_ranks": (8, 16)}),
    ],
    "lora_off": [
        ({**options(enable_lora=False), "adapter_ranks": (8,)}, options(enable_lora=True)),
    ],
    "few_in_host": [
        (options(enable_lora=True, max_loras=4, max_cpu_loras=2),
         options(enable_lora=True, max_loras=2, max_cpu_loras=2)),
    ],
    "sharded_experts": [
        (options(enable_lora=True, enable_expert_parallel=True, fully_sharded_loras=True),
         options(enable_lora=True, enable_expert_parallel=True)),
    ],
    "draft_sampling": [
        ({**options(speculative_config=NGRAM), "sampling": {"min_p": 0.1}}, {"sampling": {}}),
        ({**options(speculative_config=NGRAM), "sampling": {"logit_bias": {"1": 1.0}}},
         {"options": {}}),
    ],
    "draft_tensor_parallel": [
        (options(speculative_config={**NGRAM, "draft_tensor_parallel_size": 2},
                 tensor_parallel_size=4),
         options(speculative_config={**NGRAM, "draft_tensor_parallel_size": 1},
                 tensor_parallel_size=4)),
    ],
    "draft_async": [
        (options(speculative_config=NGRAM, async_scheduling=True),
         options(speculative_config={"method": "eagle3"}, async_scheduling=True)),
    ],
    "adaptive_lora": [
        (options(speculative_config={**NGRAM, "enable_adaptive_verification": True},
                 enable_lora=True),
         options(speculative_config=NGRAM, enable_lora=True)),
    ],
    "suffix_package": [
        ({**options(speculative_config={"method": "suffix"}), "modules": frozenset()},
         {"modules": frozenset({"arctic_inference"})}),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "broken", "change"),
    [(name, *pair) for name, pairs in BOTH_SIDES.items() for pair in pairs],
)
def test_both_sides_of_a_rule(name: str, broken: dict[str, Any], change: dict[str, Any]) -> None:
    (refused,) = refusals(RULES, Situation(**broken), READ_IN)
    assert refused.rule.name == name
    assert refused.reason
    assert refused.rule.remedy
    fine = replace(Situation(**broken), **change)
    assert not list(refusals(RULES, fine, READ_IN))


def test_a_pipeline_with_a_draft_was_refused_by_older_versions() -> None:
    asked = Situation(options={"speculative_config": NGRAM, "pipeline_parallel_size": 2})
    (refused,) = refusals(RULES, asked, (0, 15, 0))
    assert refused.rule.name == "draft_pipeline"
    assert not list(refusals(RULES, asked, (0, 15, 1)))
    assert not list(
        refusals(RULES, replace(asked, options={"speculative_config": NGRAM}), (0, 15, 0))
    )


def test_every_rule_is_tried_and_has_a_source() -> None:
    assert {rule.name for rule in RULES} == {*BOTH_SIDES, "draft_pipeline"}
    assert all(rule.source and rule.setting for rule in RULES)


def test_rules_hold_from_the_version_that_they_were_read_in() -> None:
    asked = Situation(options={"quantization": "bitsandbytes"})
    assert not list(refusals(RULES, asked, (0, 25, 1)))
    assert list(refusals(RULES, asked, None))
    assert not list(refusals(RULES, asked, (0, 33, 0)))  # it may know more methods


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.32.0", (0, 32, 0)),
        ("0.32.1+cpu", (0, 32, 1)),
        ("1.2", (1, 2, 0)),
        ("0.33.0rc1", (0, 33, 1)),
    ],
)
def test_versions(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text)[:2] == version[:2]
