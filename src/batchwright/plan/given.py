"""The user's own values: they win, and one that cannot work is refused with the arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from batchwright.core.errors import JobError
from batchwright.core.plan import GpuFacts, ModelFacts
from batchwright.plan.memory import valid_tensor_parallel
from batchwright.plan.model_facts import kv_value_bytes

COUNTS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "replicas",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "kv_cache_memory_bytes",
    "max_cudagraph_capture_size",
)


def check_given(
    facts: ModelFacts, gpu: GpuFacts, num_gpus: int, given: Mapping[str, Any]
) -> ModelFacts:
    """Check what can be checked before the memory is known.

    Returns:
        The facts, with the KV cache dtype that the user asks for.

    Raises:
        JobError: a value cannot work.
    """
    if num_gpus < 1:
        raise JobError(f"a plan needs at least one GPU (got {num_gpus})")
    for name in COUNTS:
        value = given.get(name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and (not whole or value < 1):
            raise JobError(f"{name}: a whole number of at least 1 (got {value!r})")
    _check_share(given)
    _check_cards(facts, num_gpus, given)
    _check_lengths(facts, given)
    dtype = given.get("kv_cache_dtype")
    if dtype is None:
        return facts
    _check_kv_dtype(gpu, str(dtype))
    size = kv_value_bytes(str(dtype), facts.dtype_bytes, facts.head_dim)
    return replace(facts, kv_cache_dtype=str(dtype), kv_value_bytes=size)


def _check_share(given: Mapping[str, Any]) -> None:
    share = given.get("gpu_memory_utilization")
    if share is None:
        return
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise JobError(f"gpu_memory_utilization: a share between 0 and 1 (got {share!r})")


def _check_cards(facts: ModelFacts, num_gpus: int, given: Mapping[str, Any]) -> None:
    wide = given.get("tensor_parallel_size") or 1
    deep = given.get("pipeline_parallel_size") or 1
    copies = given.get("replicas") or 1
    if not valid_tensor_parallel(facts, wide):
        good = [n for n in range(1, facts.heads + 1) if valid_tensor_parallel(facts, n)]
        raise JobError(
            f"tensor_parallel_size {wide} does not divide the model's {facts.heads} heads "
            f"({facts.kv_heads} KV heads)",
            f"Sizes that do: {', '.join(map(str, good))}.",
        )
    if deep > facts.layers:
        raise JobError(f"pipeline_parallel_size {deep} is more than the {facts.layers} layers")
    if wide * deep * copies > num_gpus:
        raise JobError(
            f"tensor_parallel_size {wide} x pipeline_parallel_size {deep} x replicas {copies} = "
            f"{wide * deep * copies} GPUs, but there are {num_gpus}"
        )


def _check_lengths(facts: ModelFacts, given: Mapping[str, Any]) -> None:
    length = given.get("max_model_len")
    if length is not None and length > facts.context:
        raise JobError(
            f"max_model_len is {length}, but the model's own context is {facts.context} tokens"
        )
    tokens, rows = given.get("max_num_batched_tokens"), given.get("max_num_seqs")
    if tokens is not None and rows is not None and tokens < rows:
        raise JobError(
            f"max_num_batched_tokens {tokens} is less than max_num_seqs {rows}: a step could not "
            "give each running row one token"
        )
    if given.get("enable_chunked_prefill") is False and tokens and length and tokens < length:
        raise JobError(
            f"without chunked prefill a prompt of up to max_model_len {length} tokens must fit "
            f"one step of max_num_batched_tokens {tokens}"
        )


def _check_kv_dtype(gpu: GpuFacts, dtype: str) -> None:
    if dtype.startswith("fp8") and "fp8" not in gpu.flops and dtype != "fp8_e5m2":
        raise JobError(
            f"kv_cache_dtype {dtype}: {gpu.name} has no fp8 arithmetic (compute capability "
            f"{gpu.capability[0]}.{gpu.capability[1]}, 8.9 is needed)",
            "Leave it at auto.",
        )
