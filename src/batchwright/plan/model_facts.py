"""A model's facts from the content of its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchwright.core.errors import JobError
from batchwright.core.plan import Experts, Latent, ModelFacts, Window
from batchwright.plan.parameters import FAMILIES, Family, Parameters, Shape, count_parameters
from batchwright.plan.quantized import find_quantization

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_DTYPE_NAMES = {"half": "float16", "float": "float32", "fp16": "float16", "bf16": "bfloat16"}

# Other names for the same size, the commonest first.
_ALIASES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim"),
    "context": ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx"),
}

# What published configs leave to the defaults of transformers' `Gemma3TextConfig`.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
    },
    "gemma2": {"sliding_window_pattern": 2, "tie_word_embeddings": True},
    "gemma": {"tie_word_embeddings": True},
}

_ENCODERS = ("bert", "electra", "mpnet", "xlm", "esm", "deberta")
_ENCODER_DECODERS = ("t5", "bart", "whisper", "marian", "pegasus")
_STATE_MODELS = ("mamba", "jamba", "bamba", "zamba", "rwkv", "falcon_h1", "nemotron_h", "lfm2")
_PLAIN_MLP = ("gelu", "gelu_new", "gelu_fast", "relu", "relu2")


def model_facts(
    config: Mapping[str, Any],
    *,
    weight_bytes: int | None,
    dtype: str = "auto",
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
) -> ModelFacts:
    """Read a config.

    Args:
        config: content of config.json.
        weight_bytes: `metadata.total_size` of the weight index, or the size of the files;
            None when there are none.
        dtype: as the user asks for it, by vLLM's names.
        quantization: as the user asks for it, by vLLM's names.
        kv_cache_dtype: likewise.

    Raises:
        JobError: the config is not of a decoder, or a size is missing.
    """
    text = _text_config(config)
    _check_kind(text)
    shape = _shape(text)
    counts = count_parameters(shape)
    name, stored_name = _dtypes(text, config, dtype)
    quant = find_quantization(config.get("quantization_config") or text.get("quantization_config"),
                              quantization)  # fmt: skip
    computed = quant.weight_bytes(counts, shape, DTYPE_BYTES[name])
    given = None if quant.on_load else weight_bytes
    if given is not None and quant.name == "none":
        given = given * DTYPE_BYTES[name] // DTYPE_BYTES[stored_name]
    return ModelFacts(
        **_sizes(text, shape, counts),
        dtype=name,
        dtype_bytes=DTYPE_BYTES[name],
        quantization=quant.name,
        fp8_compute=quant.fp8_compute,
        kv_cache_dtype=kv_cache_dtype,
        kv_value_bytes=kv_value_bytes(kv_cache_dtype, DTYPE_BYTES[name], shape.head_dim),
        weight_bytes=computed if given is None else given,
        weights_known=given is not None,
        latent=shape.latent,
        window=_window(text, shape.layers),
        experts=shape.experts,
    )


def kv_value_bytes(kv_cache_dtype: str, dtype_bytes: int, head_dim: int) -> float:
    """Bytes of one cached number, by vLLM's names (`vllm/config/cache.py`, `CacheDType`)."""
    if kv_cache_dtype == "auto":
        return float(dtype_bytes)
    if kv_cache_dtype in DTYPE_BYTES:
        return float(DTYPE_BYTES[kv_cache_dtype])
    if kv_cache_dtype.startswith(("fp8", "int8")):
        # Per token and head a float32 scale; per tensor nothing that counts.
        return 1.0 + (4 / head_dim if kv_cache_dtype.endswith("per_token_head") else 0.0)
    known = "auto, float16, bfloat16, fp8, fp8_e4m3, fp8_e5m2, fp8_per_token_head"
    raise JobError(f"kv_cache_dtype {kv_cache_dtype}: its size is not known", f"Known: {known}.")


def _sizes(text: dict[str, Any], shape: Shape, counts: Parameters) -> dict[str, Any]:
    return {
        "architecture": (text.get("architectures") or [text.get("model_type", "decoder")])[0],
        "layers": shape.layers,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab": shape.vocab,
        "intermediate": shape.intermediate,
        "tie_embeddings": shape.tie_embeddings,
        "context": _size(text, "context"),
        "parameters": counts.total,
        "active_parameters": counts.active,
        "expert_parameters": counts.experts,
    }


def _text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's part of the config, with its family's defaults."""
    inner = config.get("text_config") or config.get("llm_config")
    text = {**config, **inner} if isinstance(inner, Mapping) else dict(config)
    if text.get("model_type") == "gemma3":
        text["model_type"] = "gemma3_text"
    return {**_DEFAULTS.get(str(text.get("model_type")), {}), **text}


def _check_kind(text: dict[str, Any]) -> None:
    kind = str(text.get("model_type", ""))
    names = " ".join(text.get("architectures") or [])
    who = f"model type {kind or '(none given)'} {names}".strip()
    if any(name in kind for name in _ENCODERS):
        raise JobError(
            f"{who} is an encoder: it has no KV cache and makes no tokens",
            "A plan is for decoders: models that write text.",
        )
    if text.get("is_encoder_decoder") or any(kind.startswith(n) for n in _ENCODER_DECODERS):
        raise JobError(f"{who} has an encoder and a decoder: this plan sizes decoders only")
    types = text.get("layer_types") or text.get("layers_block_type") or []
    if any(name in kind for name in _STATE_MODELS) or {"linear_attention", "mamba"} & set(types):
        raise JobError(
            f"{who} keeps a state per row instead of keys and values in some layers: its memory "
            "is not known to this plan",
            "Set max_num_seqs and gpu_memory_utilization yourself.",
        )


def _shape(text: dict[str, Any]) -> Shape:
    kind = str(text.get("model_type", ""))
    family = FAMILIES.get(kind, Family())
    heads = _size(text, "num_attention_heads")
    hidden = _size(text, "hidden_size")
    experts = _experts(text)
    latent = _latent(text)
    act = text.get("hidden_act") or text.get("activation_function") or "silu"
    gpt2_like = "n_embd" in text
    inner = 4 * hidden if gpt2_like and not text.get("n_inner") else None
    dense = inner or (
        experts.intermediate
        if experts and text.get("intermediate_size") is None
        else _size(text, "intermediate_size")
    )
    return Shape(
        family=family,
        layers=_size(text, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=int(text.get("num_key_value_heads") or heads),
        head_dim=int(text.get("head_dim") or hidden // heads),
        vocab=_size(text, "vocab_size"),
        intermediate=dense,
        tie_embeddings=bool(text.get("tie_word_embeddings", gpt2_like)),
        attention_bias=bool(text.get("attention_bias") or gpt2_like),
        gated=act not in _PLAIN_MLP,
        latent=latent,
        experts=experts,
    )


def _size(text: dict[str, Any], name: str) -> int:
    for alias in _ALIASES.get(name, (name,)):
        value = text.get(alias)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    wanted = _ALIASES.get(name, (name,))
    raise JobError(
        f"config.json of model type {text.get('model_type', '(none given)')} has no "
        f"{' or '.join(wanted)}",
        "The plan needs hidden_size, num_hidden_layers, num_attention_heads, vocab_size, "
        "intermediate_size and max_position_embeddings.",
    )


def _latent(text: dict[str, Any]) -> Latent | None:
    if not text.get("kv_lora_rank"):
        return None
    return Latent(
        kv_rank=_size(text, "kv_lora_rank"),
        rope_dim=_size(text, "qk_rope_head_dim"),
        nope_dim=_size(text, "qk_nope_head_dim"),
        value_dim=_size(text, "v_head_dim"),
        query_rank=text.get("q_lora_rank"),
    )


def _experts(text: dict[str, Any]) -> Experts | None:
    names = ("num_local_experts", "n_routed_experts", "num_experts")
    count = next((text[name] for name in names if text.get(name)), 0)
    if not count or count == 1:
        return None
    width = text.get("moe_intermediate_size") or _size(text, "intermediate_size")
    shared = text.get("shared_expert_intermediate_size") or width * (
        text.get("n_shared_experts") or 0
    )
    active = text.get("num_experts_per_tok") or text.get("experts_per_token")
    if not isinstance(active, int):
        raise JobError("config.json names experts but no num_experts_per_tok")
    return Experts(int(count), active, int(width), _expert_layers(text), int(shared))


def _expert_layers(text: dict[str, Any]) -> int:
    """DeepSeek begins with dense layers; Qwen may make only every n-th layer sparse."""
    layers = _size(text, "num_hidden_layers")
    first = int(text.get("first_k_dense_replace") or 0)
    every = int(text.get("moe_layer_freq") or text.get("decoder_sparse_step") or 1)
    dense = set(text.get("mlp_only_layers") or [])
    by_deepseek = "first_k_dense_replace" in text
    return sum(
        1
        for layer in range(first, layers)
        if layer not in dense and (layer if by_deepseek else layer + 1) % every == 0
    )


def _window(text: dict[str, Any], layers: int) -> Window | None:
    types = text.get("layer_types")
    tokens = text.get("sliding_window")
    if types and "chunked_attention" in types:
        tokens = text.get("attention_chunk_size")
    if not isinstance(tokens, int) or text.get("use_sliding_window") is False:
        return None
    if types:
        narrow = sum(1 for kind in types if kind in {"sliding_attention", "chunked_attention"})
    elif pattern := text.get("sliding_window_pattern") or text.get("_sliding_window_pattern"):
        narrow = layers - layers // int(pattern)  # every `pattern`-th layer sees everything
    elif text.get("use_sliding_window"):
        narrow = max(0, layers - int(text.get("max_window_layers") or 0))
    elif text.get("model_type") == "gpt_oss":
        narrow = (layers + 1) // 2
    else:
        narrow = layers
    return Window(tokens, narrow) if narrow else None


def _dtypes(text: dict[str, Any], config: Mapping[str, Any], asked: str) -> tuple[str, str]:
    """The dtype in memory, and the one on disk."""
    stored = str(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "")
    stored = stored.removeprefix("torch.") or "bfloat16"
    name = _DTYPE_NAMES.get(asked, asked)
    if name == "auto":
        # vLLM loads float32 checkpoints in 16 bits (`vllm/config/model.py`, auto dtype).
        name = "bfloat16" if stored == "float32" else stored
    for found in (name, stored):
        if found not in DTYPE_BYTES:
            raise JobError(f"dtype {found} is not one of {', '.join(DTYPE_BYTES)}")
    return name, stored
