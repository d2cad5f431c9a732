"""The rules themselves: quantised weights, KV cache types, LoRA adapters, speculative decoding."""

from __future__ import annotations

from batchwright.plan.lora import RANKS
from batchwright.plan.supported import NEXT, Rule, Situation

_QUANTIZATION = "vllm/model_executor/layers/quantization"

# `get_min_capability` of each method, checked in `VllmConfig._get_quantization_config`. fp8 and
# compressed-tensors run below 8.9 too, with weights alone in fp8 (Marlin kernels).
_LEAST_CAPABILITY = {
    "awq": 75, "gptq": 60, "fp8": 75, "fbgemm_fp8": 80, "fp_quant": 100, "modelopt": 80,
    "modelopt_fp4": 75, "modelopt_mxfp8": 80, "mxfp4": 80, "experts_int8": 80, "torchao": 75,
    "humming": 75, "compressed-tensors": 70,
}  # fmt: skip

# `get_supported_act_dtypes` of each, where float32 is not among them.
_SIXTEEN_BITS = ("float16", "bfloat16")
_DTYPES = {
    **dict.fromkeys(("awq", "gptq", "fp8", "fbgemm_fp8", "modelopt", "experts_int8", "humming"),
                    _SIXTEEN_BITS),
    **dict.fromkeys(("mxfp4", "fp_quant", "modelopt_mxfp8"), ("bfloat16",)),
}  # fmt: skip
_ALIASES = {
    "awq_marlin": "awq", "auto_awq": "awq", "gptq_marlin": "gptq", "auto_gptq": "gptq",
    "gpt_oss_mxfp4": "mxfp4",
}  # fmt: skip
_SHORT = {"half": "float16", "float": "float32"}

# `QuantizationMethods` in `quantization/__init__.py`.
METHODS = frozenset(
    {"awq", "auto_awq", "fp8", "fbgemm_fp8", "fp_quant", "modelopt", "modelopt_fp4",
     "modelopt_mxfp8", "modelopt_mixed", "auto_gptq", "gptq", "gptq_marlin", "awq_marlin", "humming",
     "compressed-tensors", "experts_int8", "quark", "moe_wna16", "torchao", "inc", "mxfp4",
     "gpt_oss_mxfp4", "deepseek_v4_fp8", "online", "fp8_per_tensor", "fp8_per_block",
     "fp8_per_channel", "int8_per_channel_weight_only", "nvfp4_per_token", "mxfp8"}
)  # fmt: skip

# Methods of speculation whose drafts async scheduling can wait for.
_ASYNC_REFUSES = frozenset({"ngram", "suffix", "medusa", "mlp_speculator", "custom_class"})


def _method(now: Situation) -> str:
    algorithm = str(now.quantization.get("quant_algo") or "").upper()
    if now.method == "modelopt" and algorithm in ("NVFP4", "MXFP8"):
        return "modelopt_fp4" if algorithm == "NVFP4" else "modelopt_mxfp8"
    return _ALIASES.get(now.method, now.method)


def _bits(now: Situation) -> int:
    return int(now.quantization.get("bits") or now.quantization.get("w_bit") or 4)


def _unknown_method(now: Situation) -> str | None:
    if not now.method or now.plugins or now.method.lower() in METHODS:
        return None
    # What a checkpoint calls itself may be brought to one of vLLM's by its overrides.
    if now.quantization and now.method not in ("bitsandbytes", "aqlm", "hqq"):
        return None
    return f"{now.method} is not one of its methods any more"


def _fp8_on_load(now: Situation) -> str | None:
    asked = now.options.get("quantization")
    if asked != "fp8" or now.quantization:
        return None
    return "fp8 is for checkpoints that were stored so; this one is not"


def _old_card(now: Situation) -> str | None:
    least = _LEAST_CAPABILITY.get(_method(now))
    if least is None or now.capability is None or now.capability >= least:
        return None
    return f"{now.method} needs compute capability {least / 10:g}; the card has {now.capability / 10:g}"


def _wrong_dtype(now: Situation) -> str | None:
    dtype = _SHORT.get(now.dtype, now.dtype)
    allowed = _DTYPES.get(_method(now))
    if allowed is None or dtype == "auto" or dtype in allowed:
        return None
    return f"{now.method} weights do not run in {dtype}"


def _no_bfloat16(now: Situation) -> str | None:
    if now.dtype != "bfloat16" or now.capability is None or now.capability >= 80:
        return None
    return f"bfloat16 needs compute capability 8.0; the card has {now.capability / 10:g}"


def _gptq_bits(now: Situation) -> str | None:
    if _method(now) != "gptq" or not now.quantization:
        return None
    symmetric = bool(now.quantization.get("sym", True))
    if _bits(now) in (4, 8) and symmetric:
        return None
    form = "symmetric" if symmetric else "asymmetric"
    return f"the checkpoint is GPTQ with {_bits(now)} bits, {form}"


def _awq_bits(now: Situation) -> str | None:
    if _method(now) != "awq" or not now.quantization or _bits(now) == 4:
        return None
    return f"the checkpoint is AWQ with {_bits(now)} bits"


def _deprecated(now: Situation) -> str | None:
    old = now.method in ("fbgemm_fp8", "fp_quant")
    if not old or now.options.get("allow_deprecated_quantization"):
        return None
    return f"{now.method} is deprecated, and refused unless it is allowed"


def _flash_attention(now: Situation) -> str | None:
    if now.attention != "FLASH_ATTN" or not now.cache_dtype.startswith("fp8"):
        return None
    if now.cache_dtype not in ("fp8", "fp8_e4m3"):
        return f"FLASH_ATTN does not store keys and values as {now.cache_dtype}"
    if now.capability is None or now.capability // 10 in (9, 10):
        return None
    return (
        f"FLASH_ATTN stores keys and values in fp8 on compute capability 9.x and 10.x only; the card "
        f"has {now.capability / 10:g}"
    )


def _triton_attention(now: Situation) -> str | None:
    fp8 = now.cache_dtype.startswith("fp8")
    if now.attention != "TRITON_ATTN" or not fp8 or now.capability is None or now.capability >= 89:
        return None
    return (
        f"TRITON_ATTN stores keys and values in fp8 from compute capability 8.9 on; the card has "
        f"{now.capability / 10:g}"
    )


def _cpu_cache(now: Situation) -> str | None:
    odd = now.head_dim is not None and now.head_dim % 32 != 0
    if not now.on_cpu or not odd or not now.cache_dtype.startswith("fp8"):
        return None
    return (
        f"on CPUs an fp8 KV cache needs heads of a multiple of 32; this model's have {now.head_dim}"
    )


def _rank_not_offered(now: Situation) -> str | None:
    rank = now.options.get("max_lora_rank")
    if rank is None or not now.options.get("enable_lora") or rank in (1, *RANKS):
        return None
    return f"{rank!r} is none of 1, {', '.join(map(str, RANKS))}"


def _rank_too_small(now: Situation) -> str | None:
    rank = now.options.get("max_lora_rank")
    largest = max(now.adapter_ranks, default=0)
    if not isinstance(rank, int) or largest <= rank:
        return None
    return f"{rank} is less than an adapter's rank of {largest}"


def _lora_off(now: Situation) -> str | None:
    if not now.adapter_ranks or now.options.get("enable_lora", True):
        return None
    return "it is false, but the job has adapters"


def _few_in_host(now: Situation) -> str | None:
    host, slots = now.options.get("max_cpu_loras"), now.options.get("max_loras", 1)
    if not now.options.get("enable_lora") or host is None or host >= slots:
        return None
    return f"{host} is less than max_loras {slots}"


def _sharded_experts(now: Situation) -> str | None:
    asked = ("enable_lora", "enable_expert_parallel", "fully_sharded_loras")
    if not all(now.options.get(name) for name in asked):
        return None
    return "it does not go together with enable_expert_parallel"


def _draft_sampling(now: Situation) -> str | None:
    if not now.draft:
        return None
    for name in ("min_p", "logit_bias"):
        if now.sampling.get(name):
            return f"sampling.{name} is refused with it, row by row"
    return None


def _draft_tensor_parallel(now: Situation) -> str | None:
    draft, whole = now.draft.get("draft_tensor_parallel_size"), now.options.get(
        "tensor_parallel_size"
    )  # fmt: skip
    if draft in (None, 1) or whole is None or draft == whole:
        return None
    return f"draft_tensor_parallel_size {draft} is neither 1 nor tensor_parallel_size {whole}"


def _draft_async(now: Situation) -> str | None:
    method = now.draft.get("method")
    if not now.options.get("async_scheduling") or method not in _ASYNC_REFUSES:
        return None
    return f"it does not go together with speculation by {method}"


def _draft_pipeline(now: Situation) -> str | None:
    stages = now.options.get("pipeline_parallel_size") or 1
    return (
        "it does not go together with pipeline_parallel_size" if now.draft and stages > 1 else None
    )


def _adaptive_lora(now: Situation) -> str | None:
    if not now.draft.get("enable_adaptive_verification") or not now.options.get("enable_lora"):
        return None
    return "enable_adaptive_verification does not go together with LoRA adapters"


def _suffix_package(now: Situation) -> str | None:
    if now.draft.get("method") != "suffix" or "arctic_inference" in now.modules:
        return None
    return "method suffix needs the package arctic-inference, which is not installed"


_DRAFT = "engine.options.speculative_config"
_LORA = "vllm/config/lora.py LoRAConfig"

RULES = (
    Rule("unknown_method", "quantization", _unknown_method,
         "Take a checkpoint quantised by AWQ, GPTQ or compressed-tensors, quantise while loading "
         "(engine.options.quantization: fp8_per_tensor), or install a plugin of vLLM for it.",
         f"{_QUANTIZATION}/__init__.py QuantizationMethods; vllm/config/model.py "
         "_verify_quantization", until=NEXT),
    Rule("fp8_on_load", "engine.options.quantization", _fp8_on_load,
         "To quantise while loading: fp8_per_tensor, fp8_per_channel or fp8_per_block.",
         f"{_QUANTIZATION}/fp8.py Fp8Config.__init__"),
    Rule("old_card", "quantization", _old_card,
         "Take a newer card, or a checkpoint that is quantised otherwise or not at all.",
         "vllm/config/vllm.py _get_quantization_config; get_min_capability of each method"),
    Rule("wrong_dtype", "model.dtype", _wrong_dtype, "Leave model.dtype at auto.",
         "vllm/config/vllm.py _get_quantization_config; get_supported_act_dtypes of each method"),
    Rule("no_bfloat16", "model.dtype", _no_bfloat16, "Set model.dtype to float16.",
         "vllm/platforms/cuda.py check_if_supports_dtype"),
    Rule("gptq_bits", "quantization", _gptq_bits,
         "Take a checkpoint with 4 or 8 bits that is symmetric (sym: true).",
         f"{_QUANTIZATION}/auto_gptq.py AutoGPTQConfig.TYPE_MAP"),
    Rule("awq_bits", "quantization", _awq_bits, "Take a checkpoint with 4 bits.",
         f"{_QUANTIZATION}/auto_awq.py AutoAWQConfig.TYPE_MAP"),
    Rule("deprecated", "quantization", _deprecated,
         "Take another checkpoint, or set engine.options.allow_deprecated_quantization.",
         "vllm/config/model.py _verify_quantization; DEPRECATED_QUANTIZATION_METHODS"),
    Rule("flash_attention", "engine.options.kv_cache_dtype", _flash_attention,
         "Leave the attention backend to vLLM, or kv_cache_dtype at auto.",
         "vllm/v1/attention/backends/fa_utils.py flash_attn_supports_kv_cache_dtype"),
    Rule("triton_attention", "engine.options.kv_cache_dtype", _triton_attention,
         "Leave the attention backend to vLLM, or kv_cache_dtype at auto.",
         "vllm/v1/attention/backends/triton_attn.py TritonAttentionImpl.__init__"),
    Rule("cpu_cache", "engine.options.kv_cache_dtype", _cpu_cache, "Leave it at auto.",
         "vllm/v1/attention/backends/cpu_attn.py _get_attn_isa"),
    Rule("rank_not_offered", "engine.options.max_lora_rank", _rank_not_offered,
         "Leave it out: it follows from the adapters.", f"{_LORA}.max_lora_rank"),
    Rule("rank_too_small", "engine.options.max_lora_rank", _rank_too_small,
         "Leave it out: it follows from the adapters.",
         "vllm/lora/peft_helper.py PEFTHelper.validate_legal"),
    Rule("lora_off", "engine.options.enable_lora", _lora_off, "Leave it out.",
         "vllm/v1/engine/input_processor.py _validate_lora"),
    Rule("few_in_host", "engine.options.max_cpu_loras", _few_in_host,
         "Set it to at least max_loras, or leave it out.", f"{_LORA}._validate_lora_config"),
    Rule("sharded_experts", "engine.options.fully_sharded_loras", _sharded_experts,
         "Leave out one of the two.", "vllm/lora/layers/fused_moe.py _verify_ep_fs"),
    Rule("draft_sampling", _DRAFT, _draft_sampling, "Leave out one of the two.",
         "vllm/sampling_params.py SamplingParams._validate_spec_decode"),
    Rule("draft_tensor_parallel", _DRAFT, _draft_tensor_parallel,
         "Set it to 1 or leave it out.", "vllm/config/speculative.py "
         "_verify_and_get_draft_tp"),
    Rule("draft_async", "engine.options.async_scheduling", _draft_async,
         "Leave it out: vLLM then decides.", "vllm/config/vllm.py VllmConfig.__post_init__"),
    Rule("draft_pipeline", _DRAFT, _draft_pipeline,
         "Use tensor parallelism alone, or a newer vLLM.",
         "docs/features/speculative_decoding/README.md, Known Feature Incompatibility",
         since=(0, 0, 0), until=(0, 15, 1)),
    Rule("adaptive_lora", _DRAFT, _adaptive_lora, "Leave out one of the two.",
         "vllm/config/vllm.py _validate_adaptive_verification"),
    Rule("suffix_package", _DRAFT, _suffix_package, "pip install arctic-inference==0.1.1",
         "vllm/config/speculative.py _validate_suffix_decoding"),
)  # fmt: skip
