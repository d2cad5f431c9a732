"""Words of the plan: facts about the model and the GPU, the settings chosen, what they promise.

Sizes are bytes (1 GB = 1e9 B, 1 MiB = 2**20 B), times are seconds, rates are per second.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from batchwright.core.beside import Draft, LoraSlots


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2 report, arXiv 2405.04434, section 2.1).

    Attributes:
        kv_rank: width of the compressed key and value that the cache holds.
        rope_dim: width of the one rotary key that all heads share; cached beside it.
        nope_dim: width of the part of a head's key without rotary embedding.
        value_dim: width of a head's value.
        query_rank: width of the compressed query; None when queries are not compressed.
    """

    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    query_rank: int | None = None

    @property
    def cached_dim(self) -> int:
        """Values in the cache per token and layer, whatever the number of heads."""
        return self.kv_rank + self.rope_dim


@dataclass(frozen=True, slots=True)
class Window:
    """Layers that look back only `tokens` tokens; the other layers see everything."""

    tokens: int
    layers: int


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts: `active` of `count` routed experts per token in `layers` layers.

    `intermediate` is the width of one routed expert, `shared_intermediate` that of the experts
    that every token passes (0: none).
    """

    count: int
    active: int
    intermediate: int
    layers: int
    shared_intermediate: int = 0


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the arithmetic needs to know of a model.

    Attributes:
        architecture: the config's own name.
        layers: transformer blocks.
        hidden: width of the residual stream.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: width of one head.
        vocab: rows of the embedding.
        intermediate: width of a dense block's MLP.
        tie_embeddings: whether input and output embedding are one tensor.
        context: tokens that the model was made for.
        dtype: of activations and unquantised weights.
        dtype_bytes: of one such value.
        quantization: `none`, `fp8`, `awq`, `gptq`, `bitsandbytes`, `mxfp4`, ...
        fp8_compute: whether the matrix products can run in fp8 (weights and activations).
        kv_cache_dtype: `auto` is the model's own dtype.
        kv_value_bytes: of one cached number, scales included.
        parameters: in all.
        active_parameters: of the blocks, used by one token; embedding and head not counted.
        expert_parameters: in routed experts, all of them.
        weight_bytes: in GPU memory, summed over the GPUs of a replica.
        weights_known: True when the weight index said so, False when computed.
        latent: set for multi-head latent attention.
        window: set when some layers have a sliding window.
        experts: set for a mixture of experts.
        lora: set when the engine keeps room for adapters.
        draft: set with speculative decoding.
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    intermediate: int
    tie_embeddings: bool
    context: int
    dtype: str
    dtype_bytes: int
    quantization: str
    fp8_compute: bool
    kv_cache_dtype: str
    kv_value_bytes: float
    parameters: int
    active_parameters: int
    expert_parameters: int
    weight_bytes: int
    weights_known: bool
    latent: Latent | None = None
    window: Window | None = None
    experts: Experts | None = None
    lora: LoraSlots | None = None
    draft: Draft | None = None

    @property
    def head_parameters(self) -> int:
        """Of the output embedding, used once per sampled token."""
        return self.vocab * self.hidden

    @property
    def embedding_bytes(self) -> int:
        """Input and output embedding together, which no common method quantises."""
        return self.head_parameters * self.dtype_bytes * (1 if self.tie_embeddings else 2)

    @property
    def body_bytes(self) -> int:
        """All weights but the embeddings."""
        return max(0, self.weight_bytes - self.embedding_bytes)

    @property
    def body_parameters(self) -> int:
        """All parameters but the embeddings."""
        return self.parameters - self.head_parameters * (1 if self.tie_embeddings else 2)

    @property
    def kv_bytes_per_token(self) -> int:
        """KV cache of one token in all layers, over all GPUs.

        Past a sliding window a further token costs only `kv_bytes_per_token_unbounded`.
        """
        return round(self.layers * self.kv_values_per_layer * self.kv_value_bytes)

    @property
    def kv_bytes_per_token_unbounded(self) -> int:
        """KV cache of one token in the layers without a window."""
        full = self.layers - (self.window.layers if self.window else 0)
        return round(full * self.kv_values_per_layer * self.kv_value_bytes)

    @property
    def kv_values_per_layer(self) -> int:
        """Numbers cached per token and layer: a key and a value per KV head, or the latent."""
        if self.latent:
            return self.latent.cached_dim
        return 2 * self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What the arithmetic needs to know of a GPU.

    Attributes:
        name: as people say it.
        memory_bytes: what `nvidia-smi` (`rocm-smi`) reports as total, not the marketing GB.
        bandwidth_bytes_s: of the GPU's memory, peak.
        flops: peak dense operations per second by `float16`, `bfloat16`, `fp8`; absent when the
            GPU does not have the format.
        capability: compute capability (NVIDIA) or (9, 4) for gfx942.
        nvlink: whether cards of one host are linked directly as a rule.
        source: the document that the figures are from.
    """

    name: str
    memory_bytes: int
    bandwidth_bytes_s: float
    flops: dict[str, float]
    capability: tuple[int, int]
    nvlink: bool
    source: str

    def peak_flops(self, facts: ModelFacts) -> float:
        """Peak dense FLOP/s of the model's matrix products on this GPU."""
        if facts.fp8_compute and "fp8" in self.flops:
            return self.flops["fp8"]
        return self.flops.get(facts.dtype, self.flops["float16"])


def default_batched_tokens(device: str, memory_bytes: int) -> int:
    """Tokens per step where nobody says how many: what vLLM's `LLM` takes on that card.

    From `EngineArgs.get_batch_defaults`. vLLM's other entry points take 2,048 on every card; A100s
    are slower with more than 8,192.
    """
    large = memory_bytes >= 70 << 30 and "A100" not in device.upper()
    return 16_384 if large else 8_192


@dataclass(frozen=True, slots=True)
class Setting:
    """One decision: the value, why, what limits it, and what was not taken and why not."""

    value: Any
    why: str
    limited_by: str = ""
    rejected: tuple[tuple[Any, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """Where the memory of each GPU of a replica goes; bytes but for the last three.

    Attributes:
        allowed: `gpu_memory_utilization` of the card's memory.
        weights: the card's share of them.
        activations: peak of one step.
        graphs: CUDA graphs.
        reserve: driver, CUDA context, communication buffers.
        kv_pool: what is left for the KV cache; negative when the rest does not even fit.
        kv_per_token: of one token in all layers on this card.
        longest_row: KV cache that one row of `max_model_len` tokens takes on this card.
        capacity_tokens: of the replica, counted as the engine counts it.
        blocks: KV blocks in the pool.
        pool_too_large: a pool of the user's own size and the rest are more than the card has.
    """

    allowed: int
    weights: int
    activations: int
    graphs: int
    reserve: int
    kv_pool: int
    kv_per_token: int
    longest_row: int
    capacity_tokens: int
    blocks: int
    pool_too_large: bool = False

    @property
    def fits(self) -> bool:
        """Whether the longest row fits, the condition of every plan."""
        return self.kv_pool >= self.longest_row


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the plan promises before anything has run; `assumes` says what it rests on.

    `card_s` and `host_s` are the seconds that the cards and the host of one engine need, each if
    the other were no bottleneck.
    """

    rows_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    hours: float
    gpu_hours: float
    usd: float | None
    assumes: tuple[str, ...] = ()
    card_s: float = 0.0
    host_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Limit:
    """What the hardware allows for this workload.

    Attributes:
        l0_s: no schedule can be faster: everything overlaps perfectly.
        l1_s: kernels run one after the other, as engines do; the yardstick.
        bound_by: compute, memory bandwidth, attention, host or tail.
        terms_s: the terms of both, by name.
    """

    l0_s: float
    l1_s: float
    bound_by: str
    terms_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole plan: settings by the engine's names, and what follows from them.

    Attributes:
        settings: by name; those that are no engine arguments are `replicas`, `engines_per_gpu`,
            `in_flight` and `order`.
        max_concurrent_rows: rows of this workload that the KV cache of one replica holds.
        gpus: that the plan uses.
        pool_of_each: KV pool in bytes of each of several engines that share a card.
        notes: what the user should know besides.
    """

    model: ModelFacts
    gpu: GpuFacts
    gpus: int
    replicas: int
    settings: dict[str, Setting]
    memory: Memory
    max_concurrent_rows: int
    prediction: Prediction
    limit: Limit
    notes: tuple[str, ...] = ()
    pool_of_each: int | None = None

    def value(self, name: str) -> Any:
        """The value of a setting."""
        return self.settings[name].value

    def engine_options(self) -> dict[str, Any]:
        """The settings that the engine is started with, by its own names, None left out."""
        own = {"replicas", "in_flight", "order", "engines_per_gpu"}
        return {
            name: setting.value
            for name, setting in self.settings.items()
            if name not in own and setting.value is not None
        }

    def as_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        chosen = {name: setting.value for name, setting in self.settings.items()}
        return {
            **chosen,
            "kv_bytes_per_token": self.model.kv_bytes_per_token,
            "weight_bytes": self.model.weight_bytes,
            "kv_capacity_tokens": self.memory.capacity_tokens,
            "max_concurrent_rows": self.max_concurrent_rows,
            "replicas": self.replicas,
            "gpus": self.gpus,
            "predicted": asdict(self.prediction),
            "limit": asdict(self.limit),
            "memory": asdict(self.memory),
            "model": asdict(self.model),
            "gpu": asdict(self.gpu),
            "settings": {name: asdict(setting) for name, setting in self.settings.items()},
            "notes": list(self.notes),
        }
