"""How many parameters a model has, by arithmetic from its shape.

The formulas are those of the model definitions in Hugging Face transformers (`models/<type>/
modeling_<type>.py`); the tests hold them against the published totals.
"""

from __future__ import annotations

from dataclasses import dataclass

from batchwright.core.plan import Experts, Latent


@dataclass(frozen=True, slots=True)
class Family:
    """What the sizes in a config do not say.

    Attributes:
        qkv_bias: None: as the config's `attention_bias` says.
        o_bias: None: likewise.
        norms: RMS norm vectors per layer.
        qk_norm: a norm vector of one head's width for queries and one for keys.
        shared_gate: the shared expert has a gate vector.
        expert_bias: experts and router have biases, heads have sinks (gpt-oss).
    """

    qkv_bias: bool | None = None
    o_bias: bool | None = None
    norms: int = 2
    qk_norm: bool = False
    shared_gate: bool = False
    expert_bias: bool = False


FAMILIES: dict[str, Family] = {
    "qwen2": Family(qkv_bias=True, o_bias=False),
    "qwen2_moe": Family(qkv_bias=True, o_bias=False, shared_gate=True),
    "qwen3": Family(qk_norm=True),
    "qwen3_moe": Family(qk_norm=True),
    "gemma": Family(),
    "gemma2": Family(norms=4),
    "gemma3_text": Family(norms=4, qk_norm=True),
    "gpt_oss": Family(qkv_bias=True, o_bias=True, expert_bias=True),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes that a config gives, under one name each."""

    family: Family
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    intermediate: int
    tie_embeddings: bool
    attention_bias: bool
    gated: bool
    latent: Latent | None
    experts: Experts | None


@dataclass(frozen=True, slots=True)
class Parameters:
    """Counts: in all, used by one token in the blocks, and in routed experts."""

    total: int
    active: int
    experts: int


def count_parameters(shape: Shape) -> Parameters:
    """Count a decoder's parameters."""
    experts = shape.experts
    per_layer = attention_parameters(shape) + shape.family.norms * shape.hidden
    dense_layers = shape.layers - (experts.layers if experts else 0)
    body = shape.layers * per_layer + dense_layers * mlp_parameters(shape, shape.intermediate)
    routed = active_routed = 0
    if experts:
        body += experts.layers * shared_parameters(shape, experts)
        one = mlp_parameters(shape, experts.intermediate)
        if shape.family.expert_bias:
            one += 2 * experts.intermediate + shape.hidden
        routed = experts.layers * experts.count * one
        active_routed = experts.layers * experts.active * one
    body += shape.hidden  # the last norm
    embeddings = shape.vocab * shape.hidden * (1 if shape.tie_embeddings else 2)
    return Parameters(body + routed + embeddings, body + active_routed, routed)


def attention_parameters(shape: Shape) -> int:
    """Of one layer's attention."""
    if shape.latent:
        return _latent_parameters(shape, shape.latent)
    family = shape.family
    queries = shape.heads * shape.head_dim
    keys = shape.kv_heads * shape.head_dim
    found = 2 * shape.hidden * queries + 2 * shape.hidden * keys
    if shape.attention_bias if family.qkv_bias is None else family.qkv_bias:
        found += queries + 2 * keys
    if shape.attention_bias if family.o_bias is None else family.o_bias:
        found += shape.hidden
    if family.qk_norm:
        found += 2 * shape.head_dim
    if family.expert_bias:
        found += shape.heads  # one sink per head
    return found


def _latent_parameters(shape: Shape, latent: Latent) -> int:
    """DeepSeek-V2's attention: down and up projections of queries, keys and values."""
    query = shape.heads * (latent.nope_dim + latent.rope_dim)
    if latent.query_rank:
        found = shape.hidden * latent.query_rank + latent.query_rank + latent.query_rank * query
    else:
        found = shape.hidden * query
    found += shape.hidden * latent.cached_dim + latent.kv_rank
    found += latent.kv_rank * shape.heads * (latent.nope_dim + latent.value_dim)
    return found + shape.heads * latent.value_dim * shape.hidden


def mlp_parameters(shape: Shape, width: int) -> int:
    """Of an MLP: up, down and, if it is gated, gate."""
    return (3 if shape.gated else 2) * shape.hidden * width


def shared_parameters(shape: Shape, experts: Experts) -> int:
    """What every token passes in a layer with experts: the router and the shared expert."""
    found = shape.hidden * experts.count
    if shape.family.expert_bias or shape.latent:
        found += experts.count  # the router's bias
    if experts.shared_intermediate:
        found += mlp_parameters(shape, experts.shared_intermediate)
        found += shape.hidden if shape.family.shared_gate else 0
    return found
