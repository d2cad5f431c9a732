"""Plans: measured figures, choices, the user's values, refusals."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import pytest

from batchwright.core.errors import JobError
from batchwright.core.plan import ModelFacts, Plan
from batchwright.core.workload import LengthHistogram, Workload
from batchwright.plan.gpus import find_gpu
from batchwright.plan.model_facts import model_facts
from batchwright.plan.search import capture_sizes, make_plan
from tests.unit.plan import model_configs as configs
from tests.unit.plan.model_configs import job

QWEN_05B = model_facts(configs.QWEN_05B, weight_bytes=None)
QWEN_7B = model_facts(configs.QWEN_7B, weight_bytes=None)
LLAMA_70B = model_facts(configs.LLAMA_70B, weight_bytes=None)
GEMMA_3 = model_facts(configs.GEMMA3_4B, weight_bytes=None)


def plan_of(
    facts: ModelFacts,
    workload: Workload,
    gpu: str = "H200",
    gpus: int = 1,
    *,
    nvlink: bool = True,
    **user: Any,
) -> Plan:
    return make_plan(
        facts,
        find_gpu(gpu),
        gpus,
        workload,
        user=user,
        usd_per_gpu_hour=2.0,
        linked_by_nvlink=nvlink,
    )


def seconds(plan: Plan) -> float:
    return plan.prediction.hours * 3600


def lognormal(mean: float, sigma: float, rows: int, most: int) -> LengthHistogram:
    normal = statistics.NormalDist(math.log(mean) - sigma**2 / 2, sigma)
    shares = ((index + 0.5) / rows for index in range(rows))
    return LengthHistogram.of(
        min(most, max(1, round(math.exp(normal.inv_cdf(share))))) for share in shares
    )


# Measured on one H200 with vLLM 0.25.1: dummy weights, random tokens, forced lengths.
@pytest.mark.parametrize(
    ("facts", "workload", "user", "measured_s", "within"),
    [
        (QWEN_7B, job(8_000, 128, 128), {}, 8_000 * 128 / 20_343, 0.05),
        (
            QWEN_7B,
            job(8_000, 128, 128),
            {"max_num_seqs": 1024, "max_cudagraph_capture_size": 512},
            8_000 * 128 / 15_269,
            0.05,
        ),
        (QWEN_7B, job(4_000, 300, 64), {}, 37.1, 0.1),
        (QWEN_05B, job(20_000, 150, 8), {}, 11.3, 0.05),
        # KV cache cut to 100,000 tokens, 200 groups of 8 rows with a common prefix of 1,024
        (
            QWEN_7B,
            job(1_600, 1_104, 32, cached=0.34),
            {"kv_cache_memory_bytes": 100_000 * 57_344},
            29.4,
            0.1,
        ),
        (
            QWEN_7B,
            job(1_600, 1_104, 32, cached=0.81),
            {"kv_cache_memory_bytes": 100_000 * 57_344},
            10.0,
            0.1,
        ),
        # a short job with a long tail, in file order (the spread is a guess: not recorded)
        (
            QWEN_7B,
            Workload(lognormal(400, 0.6, 2_000, 4_000), lognormal(245, 1.0, 2_000, 2_000), 2_000),
            {"max_num_seqs": 256},
            52.9,
            0.3,
        ),
    ],
)
def test_measured_times(
    facts: ModelFacts, workload: Workload, user: dict[str, Any], measured_s: float, within: float
) -> None:
    assert seconds(plan_of(facts, workload, **user)) == pytest.approx(measured_s, rel=within)


def test_a_small_model_on_one_card() -> None:
    plan = plan_of(QWEN_7B, job(10_000, 300, 100))
    assert plan.value("tensor_parallel_size") == plan.replicas == plan.gpus == 1
    assert plan.value("max_num_seqs") == 1024
    assert plan.value("max_num_batched_tokens") == 16_384
    assert plan.value("max_model_len") == 400
    assert plan.value("cudagraph_capture_sizes")[-1] == 1024
    assert plan.value("kv_cache_dtype") == "auto"
    assert plan.memory.fits
    assert plan.notes[0].startswith("The longest row fits: weights 15.2 GB + activations")


def test_as_json_has_what_is_promised() -> None:
    found = plan_of(QWEN_7B, job(10_000, 300, 100)).as_json()
    assert found["kv_bytes_per_token"] == 57_344
    assert found["weight_bytes"] == 15_231_233_024
    for name in ("kv_capacity_tokens", "max_concurrent_rows", "tensor_parallel_size", "replicas"):
        assert found[name] >= 1
    for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens"):
        assert found[name] >= 1
    assert found["gpu_memory_utilization"] == 0.92
    assert {"rows_per_s", "hours", "usd"} <= set(found["predicted"])
    assert {"l0_s", "l1_s", "bound_by"} <= set(found["limit"])
    assert found["predicted"]["usd"] == pytest.approx(found["predicted"]["gpu_hours"] * 2)


def test_replicas_where_one_card_is_enough() -> None:
    plan = plan_of(QWEN_7B, job(100_000, 300, 100), gpus=8)
    assert (plan.replicas, plan.value("tensor_parallel_size")) == (8, 1)
    assert any("tensor parallel 2" in str(value) for value, _ in
               plan.settings["tensor_parallel_size"].rejected)  # fmt: skip


def test_70b_needs_four_cards() -> None:
    with pytest.raises(JobError) as refused:
        plan_of(LLAMA_70B, job(1_000, 3_000, 1_000), "H100", 1)
    assert "weights 141.1 GB" in refused.value.message
    assert "4 cards" in refused.value.hint
    plan = plan_of(LLAMA_70B, job(1_000, 3_000, 1_000), "H100", 4)
    assert plan.value("tensor_parallel_size") == 4
    assert plan.memory.fits


def test_pipelines_only_without_nvlink() -> None:
    linked = plan_of(LLAMA_70B, job(5_000, 2_000, 50), "L40S", 4)
    assert linked.value("pipeline_parallel_size") == 1
    apart = plan_of(LLAMA_70B, job(5_000, 2_000, 50), "L40S", 4, nvlink=False)
    assert apart.value("pipeline_parallel_size") > 1


def test_28_heads_on_three_cards() -> None:
    plan = plan_of(QWEN_7B, job(5_000, 300, 100), "L4", 3)
    assert 28 % plan.value("tensor_parallel_size") == 0


def test_the_cache_limits_the_rows() -> None:
    plan = plan_of(QWEN_7B, job(5_000, 1_500, 2_500), "L4")
    rows = plan.value("max_num_seqs")
    assert rows == plan.value("cudagraph_capture_sizes")[-1]
    assert 0.9 * plan.max_concurrent_rows <= rows <= plan.max_concurrent_rows
    assert "KV cache" in plan.settings["max_num_seqs"].limited_by
    assert "fp8" in [value for value, _ in plan.settings["kv_cache_dtype"].rejected]


def test_long_prompts_may_share_so_there_is_room_for_more_rows() -> None:
    work = job(5_000, 3_000, 1_000)
    plan = plan_of(QWEN_7B, work, "L4")
    held = plan.max_concurrent_rows
    assert 3 * held < plan.value("max_num_seqs") <= 4 * held + 4
    assert "share a prefix" in plan.settings["max_num_seqs"].why
    without = plan_of(QWEN_7B, work, "L4", enable_prefix_caching=False)
    assert without.value("max_num_seqs") <= 1.5 * without.max_concurrent_rows + 4


def test_while_answers_are_a_guess_there_are_more_places() -> None:
    alike = job(5_000, 300, 1_500)
    unlike = replace(alike, outputs=LengthHistogram((300, 900, 6_000), (2_500, 1_500, 1_000)))
    guessed = replace(alike, outputs=None, max_tokens=3_000)
    places = []
    for work in (alike, unlike, guessed):
        plan = plan_of(QWEN_7B, work, "L4")
        places.append(plan.value("max_num_seqs") / plan.max_concurrent_rows)
    assert places == pytest.approx([1.0, 1.5, 3.0], abs=0.2)


def test_a_sliding_window_holds_more_rows() -> None:
    long = job(5_000, 16_000, 100)
    narrow = plan_of(GEMMA_3, long, "L40S")
    full = plan_of(replace(GEMMA_3, window=None), long, "L40S")
    assert narrow.max_concurrent_rows > 2 * full.max_concurrent_rows


def test_rows_are_no_more_than_the_job_has() -> None:
    plan = plan_of(QWEN_7B, job(100, 300, 100))
    assert plan.value("max_num_seqs") == 100


def test_before_a_pilot_every_row_makes_all_it_may() -> None:
    unknown = Workload(LengthHistogram((300,), (5_000,)), None, 4_096)
    plan = plan_of(QWEN_7B, unknown, "A100 80GB")
    assert "max_tokens (4096)" in plan.prediction.assumes[0]
    assert plan.value("max_model_len") == 4_400
    # rows are counted at half of the cap: 300 + 2,048 / 2 tokens on average
    tokens = plan.memory.capacity_tokens / plan.max_concurrent_rows
    assert tokens == pytest.approx(1_324, rel=0.02)


def test_a_model_s_context_bounds_the_length() -> None:
    plan = plan_of(QWEN_7B, job(10, 32_000, 2_000))
    assert plan.value("max_model_len") == 32_768
    assert any("need 34,000 tokens" in note for note in plan.notes)


def test_the_user_s_values_win() -> None:
    plan = plan_of(
        QWEN_7B,
        job(5_000, 300, 100),
        gpus=4,
        tensor_parallel_size=2,
        max_num_seqs=100,
        max_num_batched_tokens=4_096,
        max_model_len=2_000,
        gpu_memory_utilization=0.8,
        kv_cache_dtype="fp8",
        enforce_eager=True,
        seed=7,
    )
    options = plan.engine_options()
    assert options["tensor_parallel_size"] == 2
    assert options["max_num_seqs"] == 100
    assert options["max_num_batched_tokens"] == 4_096
    assert options["max_model_len"] == 2_000
    assert options["gpu_memory_utilization"] == 0.8
    assert options["seed"] == 7
    assert "cudagraph_capture_sizes" not in options
    assert "replicas" not in options
    assert plan.replicas == 2
    assert plan.as_json()["kv_bytes_per_token"] == 28_672
    assert plan.settings["max_num_seqs"].why == "given by the user"


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"tensor_parallel_size": 3}, "does not divide the model's 28 heads"),
        ({"tensor_parallel_size": 4}, "4 GPUs, but there are 2"),
        ({"replicas": 3}, "3 GPUs, but there are 2"),
        ({"pipeline_parallel_size": 29}, "more than the 28 layers"),
        ({"max_model_len": 40_000}, "own context is 32768"),
        ({"max_num_seqs": 0}, "at least 1"),
        ({"max_num_seqs": True}, "at least 1"),
        ({"max_num_seqs": 512, "max_num_batched_tokens": 256}, "less than max_num_seqs 512"),
        ({"gpu_memory_utilization": 1.2}, "between 0 and 1"),
        ({"gpu_memory_utilization": 0.05}, "do not fit on 2 cards"),
        ({"kv_cache_memory_bytes": 10**6}, "one row of 400 tokens"),
        ({"kv_cache_memory_bytes": 140 * 10**9, "replicas": 2}, "GB of H200"),
        ({"max_num_batched_tokens": 100, "max_model_len": 500, "enable_chunked_prefill": False},
         "without chunked prefill"),
    ],
)  # fmt: skip
def test_values_that_cannot_work(user: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        plan_of(QWEN_7B, job(5_000, 300, 100), gpus=2, **user)


def test_fp8_keys_need_fp8_arithmetic() -> None:
    with pytest.raises(JobError, match=r"compute capability 8\.0"):
        plan_of(QWEN_7B, job(10, 10, 10), "A100", kv_cache_dtype="fp8")


def test_a_plan_needs_a_gpu() -> None:
    with pytest.raises(JobError, match="at least one GPU"):
        plan_of(QWEN_7B, job(10, 10, 10), gpus=0)


def test_too_many_rows_are_warned_of() -> None:
    plan = plan_of(QWEN_7B, job(5_000, 3_000, 1_000), "L4", max_num_seqs=256)
    assert any("thrown out" in note for note in plan.notes)


def test_old_cards_compute_in_float16() -> None:
    plan = plan_of(QWEN_05B, job(100, 100, 10), "T4")
    assert plan.value("dtype") == "float16"


def test_capture_sizes() -> None:
    assert capture_sizes(1, {}) == (1,)
    assert capture_sizes(48, {}) == (1, 2, 4, 8, 16, 32, 48)
    assert capture_sizes(1024, {})[-4:] == (640, 768, 896, 1024)
    assert capture_sizes(1024, {"enforce_eager": True}) == ()
    assert capture_sizes(1024, {"cudagraph_capture_sizes": [8, 2]}) == (2, 8)


def test_an_empty_job() -> None:
    plan = plan_of(QWEN_7B, Workload(LengthHistogram(), None, 16))
    assert plan.prediction.hours == pytest.approx(0, abs=1e-4)
