"""Where a GPU's memory goes, and the proof that the longest row fits.

What is left for the KV cache follows vLLM's own order (`Worker.determine_available_memory` in
`vllm/v1/worker/gpu_worker.py`): gpu_memory_utilization x total, minus weights, minus the peak of a
dummy step of `max_num_batched_tokens` with `max_num_seqs` sampled rows, minus CUDA graphs. Blocks
and groups of layers follow `vllm/v1/core/kv_cache_utils.py`.

Calibrated on one H200 with vLLM 0.25.1: Qwen2.5-7B in bfloat16 at 0.92 of 143,771 MiB, 16,384
tokens per step, 1,024 rows, graphs up to 512: weights 14,526 MiB, KV pool 114,636 MiB (2,096,192
tokens), so 3,107 MiB for the rest. Only that sum was measured; it is split here by arithmetic into
activations 2,000, graphs 357 and, what remains, a reserve of 752.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from batchwright.core.plan import GpuFacts, Memory, ModelFacts
from batchwright.plan.lora import lora_bytes

MIB = 1 << 20
GB = 1e9

# What the driver keeps of the total that nvidia-smi reports, an estimate: CUDA programs see about
# 139.8 GiB of an H200's 143,771 MiB, and vLLM takes its share of that.
DRIVER_BYTES = 600 * MIB
# CUDA libraries' workspaces, and NCCL's buffers where cards work together.
RUNTIME_BYTES = 200 * MIB
NCCL_BYTES = 256 * MIB
# A captured graph takes about 6 MiB for a model of 16 layers and 7 MiB for one of 28: "took 0.21
# GiB" for 35 graphs of Llama-3.2-1B (vLLM pull request 11349), and the calibration above.
GRAPH_BYTES_PER_LAYER = MIB // 4
# Async scheduling keeps two steps in flight (`VllmConfig.max_in_flight_tokens`).
STEPS_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """The settings that memory depends on, by the engine's names.

    `captured` is how many graphs are captured; `kv_cache_memory_bytes` fixes the pool.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    gpu_memory_utilization: float = 0.92
    captured: int = 51
    block_size: int = 16
    kv_cache_memory_bytes: int | None = None

    @property
    def gpus(self) -> int:
        """Cards of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


def plan_memory(facts: ModelFacts, gpu: GpuFacts, sizes: Sizes) -> Memory:
    """Every term, in bytes per card."""
    allowed = math.ceil(gpu.memory_bytes * sizes.gpu_memory_utilization)
    weights = weights_per_gpu(facts, sizes.tensor_parallel_size, sizes.pipeline_parallel_size)
    weights += lora_bytes(facts, sizes.tensor_parallel_size, sizes.pipeline_parallel_size)
    if facts.draft:  # whole in the last stage of a pipeline (`GPUModelRunner`)
        weights += math.ceil(facts.draft.weight_bytes / sizes.tensor_parallel_size)
    activations = activation_bytes(facts, sizes)
    stage_layers = math.ceil(facts.layers / sizes.pipeline_parallel_size)
    graphs = sizes.captured * GRAPH_BYTES_PER_LAYER * stage_layers
    reserve = round(DRIVER_BYTES * sizes.gpu_memory_utilization) + RUNTIME_BYTES
    reserve += NCCL_BYTES if sizes.gpus > 1 else 0
    rest = weights + activations + graphs + reserve
    pool = allowed - rest
    if sizes.kv_cache_memory_bytes is not None:
        pool = sizes.kv_cache_memory_bytes
    block = block_bytes(facts, sizes)
    row_blocks = blocks_of_longest_row(facts, sizes)
    blocks = max(0, pool // block)
    return Memory(
        allowed=allowed,
        weights=weights,
        activations=activations,
        graphs=graphs,
        reserve=reserve,
        kv_pool=pool,
        kv_per_token=kv_per_token_and_gpu(facts, sizes),
        longest_row=row_blocks * block,
        capacity_tokens=blocks * sizes.max_model_len // row_blocks,
        blocks=blocks,
        pool_too_large=pool + rest > gpu.memory_bytes,
    )


def weights_per_gpu(facts: ModelFacts, tensor_parallel: int, pipeline_parallel: int) -> int:
    """A card's share of the weights, in bytes.

    Megatron's split (arXiv 1909.08053): every matrix and the vocabulary are divided; a KV head
    cannot be, so with fewer KV heads than cards each card has one. The first and the last stage of
    a pipeline hold one embedding each.
    """
    body = math.ceil(facts.body_bytes / pipeline_parallel)
    embeddings = facts.embedding_bytes
    if pipeline_parallel > 1:
        embeddings = facts.head_parameters * facts.dtype_bytes
    share = math.ceil((body + embeddings) / tensor_parallel)
    copies = _kv_heads_per_gpu(facts, tensor_parallel) * tensor_parallel - facts.kv_heads
    if copies > 0 and not facts.latent:
        layers = math.ceil(facts.layers / pipeline_parallel)
        extra = layers * 2 * facts.hidden * facts.head_dim * copies * facts.dtype_bytes
        share += math.ceil(extra / tensor_parallel)
    return share


def activation_bytes(facts: ModelFacts, sizes: Sizes) -> int:
    """Peak of one step, in bytes per card: the widest place of a block, or the sampler.

    A block holds the residual and the normed input, then the widest of gate, up and their product
    (3 x intermediate), or of queries, keys, values and the output of attention. The sampler holds
    the logits of one row per running sequence, in the model's dtype and in float32
    (`vllm/v1/sample/sampler.py`), whole on every card.
    """
    tokens, tensor_parallel = sizes.max_num_batched_tokens, sizes.tensor_parallel_size
    widest = max(_mlp_width(facts) // tensor_parallel, _attention_width(facts) // tensor_parallel)
    block = tokens * (2 * facts.hidden + widest) * facts.dtype_bytes
    # With a draft, every proposed token of a row is sampled in the same step.
    rows = min(sizes.max_num_seqs * (1 + lookahead(facts)), tokens)
    logits = rows * facts.vocab * (facts.dtype_bytes + 4)
    sampler = logits + tokens * facts.hidden * facts.dtype_bytes
    return max(block, sampler)


def lookahead(facts: ModelFacts) -> int:
    """Tokens for which a running row needs KV blocks before it is known whether they stay."""
    return facts.draft.tokens if facts.draft else 0


def draft_kv_bytes(facts: ModelFacts, tensor_parallel: int) -> int:
    """KV cache of one token in the draft's layers on one card; it comes out of the same pool."""
    return math.ceil(facts.draft.kv_bytes_per_token / tensor_parallel) if facts.draft else 0


def _mlp_width(facts: ModelFacts) -> int:
    if not facts.experts:
        return 3 * facts.intermediate
    # The fused kernel's two buffers (`vllm/model_executor/layers/fused_moe`): one for gate and up
    # or the outputs, one for their product, for every expert that a token visits.
    routed = facts.experts.active * (
        max(2 * facts.experts.intermediate, facts.hidden) + facts.experts.intermediate
    )
    return max(routed + 3 * facts.experts.shared_intermediate, 3 * facts.intermediate)


def _attention_width(facts: ModelFacts) -> int:
    if facts.latent:
        latent = facts.latent
        return facts.heads * (2 * (latent.nope_dim + latent.rope_dim) + 2 * latent.value_dim)
    return (2 * facts.heads + 2 * facts.kv_heads) * facts.head_dim


def _kv_heads_per_gpu(facts: ModelFacts, tensor_parallel: int) -> int:
    return max(1, math.ceil(facts.kv_heads / tensor_parallel))


def kv_layer_bytes(facts: ModelFacts, tensor_parallel: int) -> float:
    """KV cache of one token in one layer on one card, in bytes.

    Grouped-query attention (arXiv 2305.13245): 2 x kv_heads x head_dim; the latent of MLA is the
    same on every card.
    """
    if facts.latent:
        return facts.latent.cached_dim * facts.kv_value_bytes
    heads = _kv_heads_per_gpu(facts, tensor_parallel)
    return 2 * heads * facts.head_dim * facts.kv_value_bytes


def kv_groups(facts: ModelFacts) -> tuple[int, int, int]:
    """Layers per group, groups that see everything, groups with a window.

    vLLM gives groups of equally many layers the blocks of one pool
    (`_get_kv_cache_groups_uniform_page_size`): the group is as large as the rarer kind of layer,
    or the commoner one if that is not 1.5 times as many; the last group is padded.
    """
    if not facts.window:
        return facts.layers, 1, 0
    narrow, full = facts.window.layers, facts.layers - facts.window.layers
    if not full:
        return facts.layers, 0, 1
    size = min(narrow, full)
    if max(narrow, full) < 1.5 * size:
        size = max(narrow, full)
    return size, math.ceil(full / size), math.ceil(narrow / size)


def block_bytes(facts: ModelFacts, sizes: Sizes) -> int:
    """One block of the pool: `block_size` tokens in the layers of one group, on one card."""
    layers = math.ceil(kv_groups(facts)[0] / sizes.pipeline_parallel_size)
    own = math.ceil(layers * sizes.block_size * kv_layer_bytes(facts, sizes.tensor_parallel_size))
    return own + sizes.block_size * draft_kv_bytes(facts, sizes.tensor_parallel_size)


def kv_per_token_and_gpu(facts: ModelFacts, sizes: Sizes) -> int:
    """KV cache of one token in all layers of one card, in bytes."""
    layers = math.ceil(facts.layers / sizes.pipeline_parallel_size)
    own = math.ceil(layers * kv_layer_bytes(facts, sizes.tensor_parallel_size))
    return own + draft_kv_bytes(facts, sizes.tensor_parallel_size)


def blocks_of_row(facts: ModelFacts, sizes: Sizes, tokens: float) -> float:
    """Blocks that a running row of so many tokens holds; fractions where `tokens` is a mean."""
    _, full, narrow = kv_groups(facts)
    half = 0.5 * (sizes.block_size - 1)  # the last block is half empty on average
    tokens += lookahead(facts)
    found = full * (tokens + half) / sizes.block_size
    if facts.window and narrow:
        seen = min(tokens, facts.window.tokens)
        found += narrow * (seen + half) / sizes.block_size
    return found


def blocks_of_longest_row(facts: ModelFacts, sizes: Sizes) -> int:
    """Blocks that the engine demands for one row of `max_model_len` tokens.

    Layers with a window hold the window and the tokens of the steps in flight, and one block more
    for the border (`SlidingWindowSpec.max_admission_blocks_per_request`).
    """
    _, full, narrow = kv_groups(facts)
    length = sizes.max_model_len
    found = full * math.ceil(length / sizes.block_size)
    if facts.window and narrow:
        seen = facts.window.tokens - 1 + STEPS_IN_FLIGHT * sizes.max_num_batched_tokens
        found += narrow * (math.ceil(min(seen, length) / sizes.block_size) + 1)
    return found


def memory_sum(facts: ModelFacts, gpu: GpuFacts, sizes: Sizes, memory: Memory) -> str:
    """The sum as one sentence, with every term in GB (1e9 bytes)."""
    needed = memory.weights + memory.activations + memory.graphs + memory.reserve
    needed += memory.longest_row
    sign = "<=" if needed <= memory.allowed else ">"
    share = "" if sizes.gpus == 1 else f" (of {facts.weight_bytes / GB:.1f} GB)"
    return (
        f"weights {memory.weights / GB:.1f} GB{share} + activations {memory.activations / GB:.1f} "
        f"+ graphs {memory.graphs / GB:.1f} + reserve {memory.reserve / GB:.1f} + one row of "
        f"{sizes.max_model_len:,} tokens {memory.longest_row / GB:.2f} = {needed / GB:.1f} GB "
        f"{sign} {memory.allowed / GB:.1f} GB ({sizes.gpu_memory_utilization:g} of {gpu.name}'s "
        f"{gpu.memory_bytes / GB:.1f} GB)"
    )


def refusal(facts: ModelFacts, gpu: GpuFacts, sizes: Sizes) -> tuple[str, str]:
    """Why the model does not fit on the cards of one replica, and what would.

    Returns:
        The message with the sum, and a hint.
    """
    memory = plan_memory(facts, gpu, sizes)
    if sizes.kv_cache_memory_bytes is not None:
        return _refuse_pool(gpu, sizes, memory), _pool_that_fits(facts, sizes, memory)
    cards = "one card" if sizes.gpus == 1 else f"{sizes.gpus} cards"
    message = (
        f"{facts.parameters / GB:.1f}B parameters in {_stored_as(facts)} = "
        f"{facts.weight_bytes / GB:.0f} GB of weights do not fit on {cards} {gpu.name}: "
        f"{memory_sum(facts, gpu, sizes, memory)}"
    )
    return message, _what_fits(facts, gpu, sizes)


def _refuse_pool(gpu: GpuFacts, sizes: Sizes, memory: Memory) -> str:
    pool = f"kv_cache_memory_bytes {memory.kv_pool / GB:.3f} GB"
    if not memory.fits:
        row = f"one row of {sizes.max_model_len:,} tokens ({memory.longest_row / GB:.3f} GB)"
        return f"{pool} does not hold {row}"
    rest = memory.weights + memory.activations + memory.graphs + memory.reserve
    return (
        f"{pool} + weights, activations, graphs and reserve {rest / GB:.1f} GB = "
        f"{(memory.kv_pool + rest) / GB:.1f} GB > {gpu.memory_bytes / GB:.1f} GB of {gpu.name}"
    )


def _pool_that_fits(facts: ModelFacts, sizes: Sizes, memory: Memory) -> str:
    left_out = "leave kv_cache_memory_bytes out: the engine takes what is left"
    if memory.fits or facts.window:
        return left_out[0].upper() + left_out[1:] + "."
    tokens = memory.kv_pool // block_bytes(facts, sizes) * sizes.block_size
    return (
        f"Set engine.options.max_model_len to {tokens:,} or less, as long as the longest prompt with "
        f"its answer needs, or {left_out}."
    )


def _stored_as(facts: ModelFacts) -> str:
    return facts.dtype if facts.quantization == "none" else facts.quantization


def valid_tensor_parallel(facts: ModelFacts, size: int) -> bool:
    """Whether the heads can be divided: query heads evenly, KV heads evenly or in copies."""
    if facts.heads % size:
        return False
    if facts.latent:
        return True
    return facts.kv_heads % size == 0 or size % facts.kv_heads == 0


def _what_fits(facts: ModelFacts, gpu: GpuFacts, sizes: Sizes) -> str:
    """The two smallest numbers of cards that hold the model, the first with its sum."""
    found: list[str] = []
    for cards in (1, 2, 4, 8, 16, 32):
        if cards <= sizes.gpus or not valid_tensor_parallel(facts, cards) or len(found) == 2:
            continue
        wider = replace(
            sizes,
            tensor_parallel_size=cards,
            pipeline_parallel_size=1,
            kv_cache_memory_bytes=None,
        )
        memory = plan_memory(facts, gpu, wider)
        if memory.fits:
            terms = memory_sum(facts, gpu, wider, memory)
            room = f"{memory.capacity_tokens:,} tokens of KV cache"
            found.append(f"{cards} cards: {room}" if found else f"{cards} cards: {terms}, {room}")
    if not found:
        return "Take a smaller model, fewer bits per weight, or shorter rows (max_model_len)."
    return f"These fit: {'; '.join(found)}. Or take fewer bits per weight."
