"""Facts from config.json against published totals and hand arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from batchwright.core.errors import JobError
from batchwright.core.plan import Experts, ModelFacts, Window
from batchwright.plan.model_facts import model_facts
from tests.unit.plan import model_configs as configs


def facts_of(config: dict[str, Any], **asked: Any) -> ModelFacts:
    return model_facts(config, weight_bytes=asked.pop("weight_bytes", None), **asked)


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (configs.QWEN_05B, 494_032_768),
        (configs.QWEN_7B, 7_615_616_512),
        (configs.LLAMA_8B, 8_030_261_248),
        (configs.LLAMA_70B, 70_553_706_496),
        (configs.MIXTRAL_8X7B, 46_702_792_704),
        (configs.QWEN3_30B_A3B, 30_532_122_624),
        (configs.QWEN15_MOE_A27B, 14_315_784_192),
        (configs.GEMMA2_9B, 9_241_705_984),
        (configs.PHI3_MINI, 3_821_079_552),
    ],
)
def test_parameters_are_exact(config: dict[str, Any], parameters: int) -> None:
    assert facts_of(config).parameters == parameters


@pytest.mark.parametrize(
    ("config", "billions"),
    [(configs.DEEPSEEK_V3, 671.03), (configs.GPT_OSS_20B, 20.91), (configs.GEMMA3_4B, 3.88)],
)
def test_parameters_are_near(config: dict[str, Any], billions: float) -> None:
    assert facts_of(config).parameters / 1e9 == pytest.approx(billions, rel=0.002)


def test_active_parameters_of_experts() -> None:
    # "A3B" and "37B activated" count the embeddings, `active_parameters` does not.
    qwen, deepseek = facts_of(configs.QWEN3_30B_A3B), facts_of(configs.DEEPSEEK_V3)
    assert qwen.active_parameters + 2 * qwen.head_parameters == pytest.approx(3.35e9, rel=0.01)
    whole = deepseek.active_parameters + deepseek.head_parameters
    assert whole == pytest.approx(37e9, rel=0.02)
    assert deepseek.experts == Experts(256, 8, 2048, 58, 2048)


@pytest.mark.parametrize(
    ("config", "kv_bytes"),
    [
        (configs.QWEN_7B, 57_344),  # 2 x 28 layers x 4 heads x 128 x 2 B
        (configs.LLAMA_8B, 131_072),  # 2 x 32 x 8 x 128 x 2
        (configs.QWEN_05B, 12_288),  # 2 x 24 x 2 x 64 x 2
        (configs.QWEN3_30B_A3B, 98_304),  # 2 x 48 x 4 x 128 x 2
        (configs.DEEPSEEK_V3, 70_272),  # 61 x (512 + 64) x 2, no factor 2: one latent
        (configs.GEMMA3_4B, 139_264),  # 2 x 34 x 4 x 256 x 2
    ],
)
def test_kv_bytes_per_token(config: dict[str, Any], kv_bytes: int) -> None:
    assert facts_of(config).kv_bytes_per_token == kv_bytes


def test_fp8_halves_the_cache() -> None:
    assert facts_of(configs.QWEN_7B, kv_cache_dtype="fp8").kv_bytes_per_token == 28_672
    assert facts_of(configs.DEEPSEEK_V3, kv_cache_dtype="fp8").kv_bytes_per_token == 35_136
    with_scales = facts_of(configs.QWEN_7B, kv_cache_dtype="fp8_per_token_head")
    # 2 x 28 x 4 heads x (128 values + one 4-byte scale)
    assert with_scales.kv_bytes_per_token == 2 * 28 * 4 * (128 + 4)


@pytest.mark.parametrize(
    ("config", "window"),
    [
        # 34 layers, each 6th sees everything: 5 full, 29 narrow
        (configs.GEMMA3_4B, Window(1024, 29)),
        (configs.GEMMA2_9B, Window(4096, 21)),
        (configs.GPT_OSS_20B, Window(128, 12)),
        (configs.PHI3_MINI, Window(2047, 32)),
        (configs.QWEN_7B, None),
        ({**configs.QWEN_7B, "use_sliding_window": True}, Window(32768, 7)),
        (configs.MIXTRAL_8X7B, None),
    ],
)
def test_windows(config: dict[str, Any], window: Window | None) -> None:
    assert facts_of(config).window == window


def test_gemma_3_past_its_window_pays_for_its_full_layers_only() -> None:
    # 2 x 5 layers x 4 heads x 256 x 2 B
    assert facts_of(configs.GEMMA3_4B).kv_bytes_per_token_unbounded == 20_480


def test_weights_by_dtype_and_quantization() -> None:
    plain = facts_of(configs.LLAMA_8B)
    assert plain.weight_bytes == 2 * 8_030_261_248
    embeddings, body = 2 * 128256 * 4096, 8_030_261_248 - 2 * 128256 * 4096
    loaded = facts_of(configs.LLAMA_8B, quantization="fp8", weight_bytes=plain.weight_bytes)
    assert loaded.weight_bytes == body + 2 * embeddings
    assert loaded.fp8_compute
    assert not loaded.weights_known
    four = facts_of(configs.LLAMA_8B, quantization="bitsandbytes")
    assert four.weight_bytes == pytest.approx(body * 4.5 / 8 + 2 * embeddings)
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    packed = facts_of({**configs.LLAMA_8B, "quantization_config": awq})
    assert packed.weight_bytes == pytest.approx(body * (4 + 20 / 128) / 8 + 2 * embeddings)
    # Published: 5.73 GB for an AWQ checkpoint of this model.
    assert packed.weight_bytes == pytest.approx(5.73e9, rel=0.01)
    assert facts_of(configs.GPT_OSS_20B).weight_bytes == pytest.approx(13.76e9, rel=0.01)


def test_compressed_tensors() -> None:
    groups = {"g": {"weights": {"num_bits": 8, "type": "float"}, "input_activations": {"b": 8}}}
    quant = {"quant_method": "compressed-tensors", "config_groups": groups}
    facts = facts_of({**configs.LLAMA_8B, "quantization_config": quant})
    assert facts.fp8_compute
    assert facts.body_bytes == facts.body_parameters


def test_the_weight_index_is_believed() -> None:
    assert facts_of(configs.LLAMA_8B, weight_bytes=123).weight_bytes == 123
    # float32 on disk, 16 bits in memory
    facts = facts_of(configs.GEMMA2_9B, weight_bytes=4 * 9_241_705_984)
    assert facts.weight_bytes == 2 * 9_241_705_984
    assert facts.dtype == "bfloat16"


def test_older_names_are_read() -> None:
    gpt2 = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
        "activation_function": "gelu_new",
    }
    assert facts_of(gpt2).parameters == pytest.approx(124.4e6, rel=0.01)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "bert", "hidden_size": 384}, "is an encoder"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "an encoder and a decoder"),
        ({"model_type": "mamba2"}, "keeps a state per row"),
        ({**configs.LLAMA_8B, "layer_types": ["linear_attention"]}, "keeps a state per row"),
        ({"model_type": "new"}, "has no num_attention_heads or n_head"),
        ({**configs.LLAMA_8B, "vocab_size": None}, "has no vocab_size"),
        ({}, "(none given)"),
    ],
)
def test_what_is_missing_is_said(config: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError) as refused:
        facts_of(config)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"quantization": "awq"}, "needs a checkpoint that was quantised so"),
        ({"kv_cache_dtype": "int3"}, "kv_cache_dtype int3"),
        ({"dtype": "float8"}, "dtype float8"),
    ],
)
def test_what_cannot_be_asked_for(asked: dict[str, str], words: str) -> None:
    with pytest.raises(JobError, match=words):
        facts_of(configs.LLAMA_8B, **asked)


def test_another_quantization_than_the_checkpoint_s() -> None:
    with pytest.raises(JobError, match="quantised by mxfp4"):
        facts_of(configs.GPT_OSS_20B, quantization="fp8")
