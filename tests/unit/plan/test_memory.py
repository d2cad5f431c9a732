"""Memory: the measured pool, hand arithmetic, refusals."""

from __future__ import annotations

import pytest

from batchwright.plan.gpus import find_gpu
from batchwright.plan.memory import (
    MIB,
    Sizes,
    block_bytes,
    blocks_of_longest_row,
    kv_groups,
    kv_per_token_and_gpu,
    plan_memory,
    refusal,
    valid_tensor_parallel,
    weights_per_gpu,
)
from batchwright.plan.model_facts import model_facts
from tests.unit.plan import model_configs as configs

QWEN_7B = model_facts(configs.QWEN_7B, weight_bytes=None)
LLAMA_8B = model_facts(configs.LLAMA_8B, weight_bytes=None)
LLAMA_70B = model_facts(configs.LLAMA_70B, weight_bytes=None)
DEEPSEEK = model_facts(configs.DEEPSEEK_V3, weight_bytes=None)
GEMMA_3 = model_facts(configs.GEMMA3_4B, weight_bytes=None)


def test_the_measured_pool() -> None:
    """One H200, vLLM 0.25.1, utilisation 0.92, 16,384 tokens per step, 51 graphs."""
    memory = plan_memory(QWEN_7B, find_gpu("H200"), Sizes(32768, 1024, 16384))
    assert memory.allowed / MIB == pytest.approx(132_269, abs=1)
    assert memory.weights / MIB == pytest.approx(14_526, abs=1)
    rest = memory.activations + memory.graphs + memory.reserve
    assert rest / MIB == pytest.approx(3_107, rel=0.01)
    assert memory.kv_pool / MIB == pytest.approx(114_636, rel=0.001)
    assert memory.capacity_tokens == pytest.approx(2_096_192, rel=0.001)


def test_what_activations_are_made_of() -> None:
    memory = plan_memory(QWEN_7B, find_gpu("H200"), Sizes(4096, 1024, 16384))
    # residual, normed input, gate, up and product, 2 B each
    assert memory.activations == 16384 * (2 * 3584 + 3 * 18944) * 2
    few = plan_memory(QWEN_7B, find_gpu("H200"), Sizes(4096, 1024, 2048))
    # logits of 1,024 rows in bfloat16 and float32, and the hidden states
    assert few.activations == 1024 * 152064 * 6 + 2048 * 3584 * 2


def test_tensor_parallel_divides_the_cache_until_heads_run_out() -> None:
    per_card = [kv_per_token_and_gpu(QWEN_7B, Sizes(4096, 8, 8, tp)) for tp in (1, 2, 4)]
    assert per_card == [57_344, 28_672, 14_336]
    # 8 KV heads over 16 cards: each has a copy of one
    assert kv_per_token_and_gpu(LLAMA_8B, Sizes(4096, 8, 8, 16)) == 2 * 32 * 1 * 128 * 2
    # the latent of MLA is on every card
    assert kv_per_token_and_gpu(DEEPSEEK, Sizes(4096, 8, 8, 8)) == 61 * 576 * 2


def test_heads_must_divide() -> None:
    assert [n for n in range(1, 33) if valid_tensor_parallel(QWEN_7B, n)] == [1, 2, 4, 28]
    assert [n for n in range(1, 17) if valid_tensor_parallel(LLAMA_8B, n)] == [1, 2, 4, 8, 16]
    assert valid_tensor_parallel(DEEPSEEK, 16)


def test_weights_are_divided() -> None:
    assert weights_per_gpu(LLAMA_70B, 4, 1) == LLAMA_70B.weight_bytes // 4
    # the stages at the ends hold one embedding each
    halves = (LLAMA_70B.body_bytes // 2) + 128256 * 8192 * 2
    assert weights_per_gpu(LLAMA_70B, 1, 2) == pytest.approx(halves, rel=1e-6)
    # 4 KV heads on 28 cards: 24 copies of one head's key and value projections
    extra = 28 * 2 * 3584 * 128 * 24 * 2 / 28
    assert weights_per_gpu(QWEN_7B, 28, 1) == pytest.approx(
        QWEN_7B.weight_bytes / 28 + extra, abs=2
    )


def test_sliding_windows_bound_a_row() -> None:
    """Gemma-3-4B by hand: 5 full layers, 29 narrow ones of 1,024 tokens.

    Groups of 5 layers: 1 full, 6 narrow (30 layers, one of them padding). A block is 16 tokens x 5
    layers x 2 x 4 heads x 256 x 2 B = 327,680 B.
    """
    sizes = Sizes(max_model_len=32768, max_num_seqs=256, max_num_batched_tokens=2048)
    assert kv_groups(GEMMA_3) == (5, 1, 6)
    assert block_bytes(GEMMA_3, sizes) == 327_680
    # full: 32,768 / 16 = 2,048; narrow: (1,023 + 2 x 2,048) / 16 = 319.9 -> 320, + 1
    assert blocks_of_longest_row(GEMMA_3, sizes) == 2048 + 6 * 321
    # Without windows it would be 34 layers x 2 x 4 x 256 x 2 x 32,768 = 4.56 GB
    memory = plan_memory(GEMMA_3, find_gpu("L4"), sizes)
    assert memory.longest_row == (2048 + 6 * 321) * 327_680 == 1_302_200_320


def test_equally_many_layers_make_groups_of_half() -> None:
    assert kv_groups(model_facts(configs.GEMMA2_9B, weight_bytes=None)) == (21, 1, 1)
    assert kv_groups(model_facts(configs.PHI3_MINI, weight_bytes=None)) == (32, 0, 1)


def test_70b_in_bfloat16_on_one_card_is_refused_with_the_sum() -> None:
    h100 = find_gpu("H100")
    one = Sizes(4096, 1, 2048, captured=1)
    assert not plan_memory(LLAMA_70B, h100, one).fits
    message, hint = refusal(LLAMA_70B, h100, one)
    assert "70.6B parameters in bfloat16 = 141 GB of weights do not fit on one card H100" in message
    assert "weights 141.1 GB + activations" in message
    assert "> 78.7 GB (0.92 of H100's 85.5 GB)" in message
    assert "2 cards: weights 70.6 GB (of 141.1 GB)" in hint
    assert "4 cards:" in hint
    assert plan_memory(LLAMA_70B, h100, Sizes(4096, 256, 8192, 4)).fits


def test_nothing_fits_at_all() -> None:
    _, hint = refusal(DEEPSEEK, find_gpu("T4"), Sizes(4096, 1, 2048))
    assert "smaller model" in hint


def test_a_pool_that_holds_no_whole_row_says_which_length_it_holds() -> None:
    h100 = find_gpu("H100")
    pool = 24_576 * kv_per_token_and_gpu(LLAMA_8B, Sizes(1, 1, 1))
    message, hint = refusal(LLAMA_8B, h100, Sizes(32_768, 256, 8192, kv_cache_memory_bytes=pool))
    assert "does not hold one row of 32,768 tokens" in message
    assert "engine.options.max_model_len to 24,576 or less" in hint
    assert plan_memory(LLAMA_8B, h100, Sizes(24_576, 256, 8192, kv_cache_memory_bytes=pool)).fits
