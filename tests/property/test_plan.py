"""The planner is monotone, and what it plans fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright.core.errors import JobError
from batchwright.core.workload import LengthHistogram, Workload
from batchwright.plan.gpus import GPUS
from batchwright.plan.memory import Sizes, plan_memory, valid_tensor_parallel
from batchwright.plan.model_facts import model_facts
from batchwright.plan.search import make_plan
from tests.unit.plan import model_configs as configs

MODELS = [
    model_facts(config, weight_bytes=None)
    for config in (
        configs.QWEN_05B,
        configs.QWEN_7B,
        configs.LLAMA_70B,
        configs.QWEN3_30B_A3B,
        configs.DEEPSEEK_V3,
        configs.GEMMA3_4B,
        configs.PHI3_MINI,
    )
]
FACTS = st.sampled_from(MODELS)
CARDS = st.sampled_from(list(GPUS.values()))
SIZES = st.builds(
    Sizes,
    max_model_len=st.integers(2, 32_768),
    max_num_seqs=st.integers(1, 1024),
    max_num_batched_tokens=st.integers(1024, 16_384),
    gpu_memory_utilization=st.floats(0.3, 1.0),
    captured=st.integers(0, 60),
)
LENGTHS = st.lists(st.integers(1, 6_000), min_size=1, max_size=30).map(LengthHistogram.of)
WORK = st.builds(
    Workload,
    prompts=LENGTHS,
    outputs=st.one_of(st.none(), LENGTHS),
    max_tokens=st.integers(1, 4_000),
    cached_share=st.floats(0, 0.95),
)


@settings(max_examples=100, deadline=None)
@given(FACTS, CARDS, SIZES, st.integers(1, 2_000))
def test_every_size_costs_memory(facts, gpu, sizes, more):  # type: ignore[no-untyped-def]
    memory = plan_memory(facts, gpu, sizes)
    for name in ("max_num_seqs", "max_num_batched_tokens", "captured"):
        larger = plan_memory(facts, gpu, replace(sizes, **{name: getattr(sizes, name) + more}))
        assert larger.kv_pool <= memory.kv_pool
        assert larger.longest_row >= memory.longest_row
    longer = plan_memory(facts, gpu, replace(sizes, max_model_len=sizes.max_model_len + more))
    assert longer.longest_row >= memory.longest_row
    assert not longer.fits or memory.fits


@settings(max_examples=60, deadline=None)
@given(FACTS, CARDS, SIZES)
def test_the_sum_is_whole(facts, gpu, sizes):  # type: ignore[no-untyped-def]
    memory = plan_memory(facts, gpu, sizes)
    parts = memory.weights + memory.activations + memory.graphs + memory.reserve
    assert parts + memory.kv_pool == memory.allowed <= gpu.memory_bytes + 1
    if memory.fits:
        assert memory.capacity_tokens >= sizes.max_model_len


def max_num_seqs(facts, gpu, work, **user):  # type: ignore[no-untyped-def]
    try:
        plan = make_plan(
            facts, gpu, 1, work, user=user, usd_per_gpu_hour=None, linked_by_nvlink=True
        )
    except JobError:
        return 0
    return plan.value("max_num_seqs")


@settings(max_examples=60, deadline=None)
@given(FACTS, CARDS, WORK, st.floats(1.0, 3.0), st.sampled_from([2048, 8192]))
def test_more_memory_never_gives_a_smaller_cap(facts, gpu, work, factor, tokens):  # type: ignore[no-untyped-def]
    larger = replace(gpu, memory_bytes=int(gpu.memory_bytes * factor))
    small = max_num_seqs(facts, gpu, work, max_num_batched_tokens=tokens)
    assert max_num_seqs(facts, larger, work, max_num_batched_tokens=tokens) >= small


@settings(max_examples=60, deadline=None)
@given(FACTS, CARDS, WORK, st.integers(1, 9), st.booleans())
def test_a_plan_fits_or_is_refused(facts, gpu, work, gpus, nvlink):  # type: ignore[no-untyped-def]
    refusal = ""
    try:
        plan = make_plan(
            facts, gpu, gpus, work, user={}, usd_per_gpu_hour=1.0, linked_by_nvlink=nvlink
        )
    except JobError as refused:
        refusal = refused.message
    if refusal:
        assert "do not fit on" in refusal
        return
    assert plan.memory.fits
    assert plan.memory.capacity_tokens >= plan.value("max_model_len")
    assert valid_tensor_parallel(facts, plan.value("tensor_parallel_size"))
    assert facts.heads % plan.value("tensor_parallel_size") == 0
    assert plan.gpus <= gpus
    assert 1 <= plan.value("max_num_seqs") <= plan.value("max_num_batched_tokens")
    assert plan.value("max_model_len") <= facts.context
    assert plan.value("cudagraph_capture_sizes")[-1] == plan.value("max_num_seqs")
    assert 0 < plan.limit.l0_s <= plan.limit.l1_s * (1 + 1e-9)
    assert plan.prediction.hours * 3600 >= plan.limit.l1_s * 0.999


def test_a_large_host_and_a_wide_histogram_are_quick() -> None:
    lengths = LengthHistogram(tuple(range(1, 30_001)), (3,) * 30_000)
    work = Workload(lengths, lengths, 2_000)
    plan = make_plan(
        MODELS[2], GPUS["H100"], 64, work, user={}, usd_per_gpu_hour=None, linked_by_nvlink=False
    )
    assert plan.prediction.rows_per_s == pytest.approx(
        lengths.rows / (plan.prediction.hours * 3600)
    )
