"""The limits against hand arithmetic and against figures worked out independently."""

from __future__ import annotations

import pytest

from batchwright.core.plan import Limit, ModelFacts
from batchwright.core.workload import LengthHistogram, Workload
from batchwright.plan.gpus import find_gpu
from batchwright.plan.limit import (
    condense,
    count_rows_in_cache,
    find_limit,
    measure_work,
    weight_reads,
)
from batchwright.plan.memory import Sizes, plan_memory
from batchwright.plan.model_facts import model_facts
from tests.unit.plan import model_configs as configs
from tests.unit.plan.model_configs import job

H200 = find_gpu("H200")
FACTS = {
    "0.5B": model_facts(configs.QWEN_05B, weight_bytes=None),
    "7B": model_facts(configs.QWEN_7B, weight_bytes=None),
    "8B": model_facts(configs.LLAMA_8B, weight_bytes=None),
    "MoE": model_facts(configs.QWEN3_30B_A3B, weight_bytes=None),
    "MLA": model_facts(configs.DEEPSEEK_V3, weight_bytes=None),
    "window": model_facts(configs.GEMMA3_4B, weight_bytes=None),
}


def limit_of(facts: ModelFacts, workload: Workload, **more: int) -> Limit:
    sizes = Sizes(8192, 1024, 16384, more.pop("tp", 1))
    memory = plan_memory(facts, H200, sizes)
    held = count_rows_in_cache(facts, measure_work(facts, workload), sizes, memory.blocks)
    return find_limit(facts, H200, workload, sizes=sizes, rows_in_cache=held, **more)


def gpu_l1_s(limit: Limit) -> float:
    """L1 without the host."""
    terms = limit.terms_s
    products = max(terms["matrix products"], terms["weights read"])
    whole = products + terms["attention in prefill"] + terms["KV cache read and written"]
    return max(whole, terms["tail"])


@pytest.mark.parametrize(
    ("model", "prompt", "output", "tokens_per_s"),
    [
        ("0.5B", 128, 128, 451_000),
        ("0.5B", 512, 512, 269_000),
        ("7B", 128, 128, 33_700),
        ("7B", 1024, 128, 7_400),
        ("7B", 512, 512, 27_200),
        ("7B", 128, 2048, 34_600),
        ("7B", 4096, 32, 538),
        ("8B", 128, 128, 29_000),
        ("8B", 512, 512, 19_800),
        ("8B", 4096, 32, 482),
        ("MoE", 128, 128, 62_500),
        ("MoE", 1024, 128, 13_200),
    ],
)
def test_l1_in_output_tokens_per_s(
    model: str, prompt: int, output: int, tokens_per_s: float
) -> None:
    rows = 40_000
    limit = limit_of(FACTS[model], job(rows, prompt, output))
    assert rows * output / gpu_l1_s(limit) == pytest.approx(tokens_per_s, rel=0.03)


def test_the_products_by_hand() -> None:
    facts = FACTS["7B"]
    terms = limit_of(facts, job(8_000, 128, 128)).terms_s
    # 2 FLOP x body x (128 prompt + 127 decoded tokens) + 2 x vocabulary x hidden x 128 sampled
    flop = 8_000 * (2 * facts.active_parameters * 255 + 2 * 152064 * 3584 * 128)
    assert terms["matrix products"] == pytest.approx(flop / 989e12)
    # queries see 1 to 128 keys: 128 x 129 / 2 pairs; 4 x 28 heads x 128 FLOP each, 28 layers
    pairs = 8_000 * 128 * 129 / 2 * 28
    assert terms["attention in prefill"] == pytest.approx(pairs * 4 * 28 * 128 / 989e12)
    # 127 decode steps read 129 to 255 keys; every computed token is written once
    reads = 8_000 * (255 * 256 / 2 - 128 * 129 / 2 + 255)
    assert terms["KV cache read and written"] == pytest.approx(reads * 57_344 / 4.8e12)


@pytest.mark.parametrize(
    ("model", "workload", "bound"),
    [
        ("7B", job(8_000, 1024, 64), "compute"),
        ("0.5B", job(20_000, 150, 8), "host"),
        ("7B", job(1, 100, 500), "tail"),
        ("8B", job(8_000, 2000, 4000), "attention"),
        ("7B", job(64, 10, 100), "tail"),
        ("MoE", job(300, 10, 100), "memory bandwidth"),
    ],
)
def test_bound_by(model: str, workload: Workload, bound: str) -> None:
    sizes = Sizes(8192, 128, 16384)
    found = find_limit(FACTS[model], H200, workload, sizes=sizes, rows_in_cache=300)
    assert found.bound_by == bound
    assert found.l0_s <= found.l1_s


def test_cached_prompt_tokens_are_not_computed() -> None:
    whole = limit_of(FACTS["7B"], job(4_000, 2000, 16))
    half = limit_of(FACTS["7B"], job(4_000, 2000, 16, cached=0.5))
    ratio = half.terms_s["matrix products"] / whole.terms_s["matrix products"]
    assert ratio == pytest.approx(0.5, abs=0.01)
    # the second half of a prompt sees the first: 3/4 of the pairs
    pairs = half.terms_s["attention in prefill"] / whole.terms_s["attention in prefill"]
    assert pairs == pytest.approx(0.75, abs=0.01)


def test_replicas_and_cards_divide_the_work() -> None:
    one = limit_of(FACTS["7B"], job(40_000, 256, 64))
    assert limit_of(FACTS["7B"], job(40_000, 256, 64), replicas=4).l1_s == pytest.approx(
        one.l1_s / 4, rel=0.01
    )
    assert limit_of(FACTS["7B"], job(40_000, 256, 64), tp=4).l0_s < one.l0_s


def test_a_window_bounds_what_is_read() -> None:
    narrow = FACTS["window"]
    work = measure_work(narrow, job(1, 8192, 2))
    # one decode step reads 5 x 8,193 and 29 x 1,024 keys
    assert work.decode_reads == pytest.approx(5 * 8193 + 29 * 1024)
    # prefill: 5 x 8192 x 8193 / 2; 29 x (1024 x 1025 / 2 + 7168 x 1024)
    pairs = 5 * 8192 * 8193 / 2 + 29 * (1024 * 1025 / 2 + 7168 * 1024)
    assert work.prefill_pairs == pytest.approx(pairs)


def test_latent_attention_computes_in_decode() -> None:
    # 128 heads x (2 x 576 + 2 x 512) = 278,528 FLOP per key, 1,152 B
    facts = FACTS["MLA"]
    work = measure_work(facts, job(1000, 1, 1001))
    terms = limit_of(facts, job(1000, 1, 1001), tp=8).terms_s
    flop = (work.prefill_pairs + work.decode_reads) * 278_528
    assert terms["attention in prefill"] == pytest.approx(flop / 8 / 989e12)


def test_experts_are_read_as_far_as_tokens_visit_them() -> None:
    facts, sizes = FACTS["MoE"], Sizes(4096, 8, 8)
    one, many = weight_reads(facts, sizes, 1), weight_reads(facts, sizes, 1000)
    assert one == pytest.approx(2 * (facts.active_parameters + facts.head_parameters), rel=1e-6)
    assert many == pytest.approx(facts.weight_bytes - 2 * facts.head_parameters, rel=1e-6)


def test_resident_length_is_length_biased() -> None:
    # outputs of 10 and 990 in equal numbers: E[o^2] / (2 E[o]) = 490,100 / 1,000
    outputs = LengthHistogram((10, 990), (50, 50))
    work = measure_work(
        FACTS["7B"], Workload(LengthHistogram((100,), (100,)), outputs, max_tokens=990)
    )
    assert work.resident == pytest.approx(100 + 490.1)


def test_before_a_pilot_rows_make_all_they_may() -> None:
    work = measure_work(FACTS["7B"], Workload(LengthHistogram((100,), (10,)), None, 64))
    assert work.output_tokens == 640


def test_condensing_keeps_rows_and_mean() -> None:
    histogram = LengthHistogram.of([1, 2, 3, 1000, *range(500)])
    few = condense(histogram)
    assert len(few) <= 49
    assert sum(share for _, share in few) == pytest.approx(1)
    assert sum(length * share for length, share in few) == pytest.approx(histogram.mean)
    assert condense(LengthHistogram()) == []
