"""LoRA adapters: what their configs must be like, the engine settings and the memory they need.

The checks are vLLM 0.32's own (`vllm/lora/peft_helper.py`, `PEFTHelper`), made before it starts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchwright.core.beside import LoraSlots
from batchwright.core.errors import JobError
from batchwright.core.plan import ModelFacts

# `MaxLoRARanks` in `vllm/config/lora.py`, without 1, which older versions do not have.
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)

# Each slot takes GPU memory for the largest rank; more adapters than slots take turns.
MOST_SLOTS = 8
# Adapters that the host keeps; others are read from disk again when rows ask for them.
MOST_IN_HOST = 32

# Features of peft that vLLM reads only to refuse them.
_REFUSED = {
    "use_dora": "DoRA", "lora_bias": "a LoRA bias", "alora_invocation_tokens": "activated LoRA",
    "layer_replication": "layer replication", "use_bdlora": "block-diagonal LoRA",
    "use_qalora": "QALoRA",
}  # fmt: skip
# Inits that leave the base model's weights as they are.
_INITS = frozenset({"gaussian", "eva", "orthogonal", "mica", "lora_ga"})


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """What an adapter's config says.

    Attributes:
        rank: the largest of its modules.
        base: the model that it was trained on, as its trainer named it; empty if it does not say.
    """

    name: str
    rank: int
    base: str


def read_adapter(name: str, config: Mapping[str, Any]) -> AdapterFacts:
    """Check the content of an `adapter_config.json`.

    Raises:
        JobError: it is not of a LoRA adapter, or of one that vLLM refuses.
    """
    kind = config.get("peft_type", "LORA")
    if str(kind).upper() != "LORA":
        raise _wrong(name, f"it is of type {kind}, not LORA")
    for field in ("r", "lora_alpha", "target_modules"):
        if not config.get(field):
            raise _wrong(name, f"its adapter_config.json has no {field}")
    ranks = [config["r"], *(config.get("rank_pattern") or {}).values()]
    if not all(type(rank) is int and rank > 0 for rank in ranks):
        raise _wrong(name, f"its rank must be a whole number of at least 1 (got {ranks})")
    if max(ranks) > RANKS[-1]:
        raise _wrong(name, f"its rank is {max(ranks)}, and vLLM takes {RANKS[-1]} at most")
    for field, words in _REFUSED.items():
        if config.get(field):
            raise _wrong(name, f"it uses {words} ({field}), which vLLM does not support")
    _check_rest(name, config)
    return AdapterFacts(name, max(ranks), str(config.get("base_model_name_or_path") or ""))


def _check_rest(name: str, config: Mapping[str, Any]) -> None:
    if config.get("bias", "none") != "none":
        raise _wrong(name, f"it has a bias ({config['bias']}), which vLLM does not support")
    saved = [
        one for one in config.get("modules_to_save") or () if one not in ("classifier", "score")
    ]
    if saved:
        raise _wrong(
            name, f"it replaces whole modules ({', '.join(saved)}), which vLLM does not support"
        )
    init = config.get("init_lora_weights", True)
    if isinstance(init, str) and init.lower() not in _INITS:
        raise _wrong(name, f"its init_lora_weights {init} changes the base model's own weights")


def _wrong(name: str, problem: str) -> JobError:
    return JobError(
        f"model.adapters, {name}: {problem}",
        "Merge it into the model, convert it to a plain LoRA adapter, or take it out of the job.",
    )


def check_shapes(
    name: str, shapes: Mapping[str, Sequence[int]], config: Mapping[str, Any], rank: int
) -> None:
    """Find an adapter that was trained for a model of another size.

    Args:
        name: of the adapter.
        shapes: of its tensors, by their names.
        config: the model's `config.json`.
        rank: the adapter's.

    Raises:
        JobError: a matrix does not fit the model's.
    """
    widths = _input_widths(config)
    matrices = 0
    for tensor, shape in shapes.items():
        path, _, part = tensor.removesuffix(".weight").rpartition(".")
        if part not in ("lora_A", "lora_B") or len(shape) != 2:
            continue
        matrices += 1
        wanted = widths.get(path.rpartition(".")[2])
        if part == "lora_A" and wanted and shape[1] != wanted:
            raise JobError(
                f"model.adapters, {name}: {tensor} takes {shape[1]} numbers, but that layer of the "
                f"model has {wanted}",
                "It was trained on a model of another size: take the model it was made for.",
            )
        if (shape[0] if part == "lora_A" else shape[1]) > rank:
            raise _wrong(name, f"{tensor} has a larger rank than the {rank} of its config")
    if not matrices:
        raise _wrong(name, "its weights file holds no lora_A and lora_B matrices")


def _input_widths(config: Mapping[str, Any]) -> dict[str, int]:
    """Width of what goes into each layer, by the names that nearly all decoders use."""
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, Mapping) else config
    hidden = text.get("hidden_size")
    # Latent attention and experts name and size their layers in ways of their own.
    if not isinstance(hidden, int) or text.get("kv_lora_rank"):
        return {}
    return dict.fromkeys(("q_proj", "k_proj", "v_proj"), hidden)


def lora_options(adapters: Sequence[AdapterFacts]) -> dict[str, Any]:
    """Engine settings for these adapters, by vLLM's names; the user's own beat them."""
    if not adapters:
        return {}
    rank = max(adapter.rank for adapter in adapters)
    slots = min(len(adapters), MOST_SLOTS)
    return {
        "enable_lora": True,
        "max_loras": slots,
        "max_lora_rank": next(one for one in RANKS if one >= rank),
        "max_cpu_loras": max(slots, min(len(adapters), MOST_IN_HOST)),
    }


def lora_slots(options: Mapping[str, Any]) -> LoraSlots | None:
    """The slots that an engine with these options keeps on each card."""
    if not options.get("enable_lora"):
        return None
    return LoraSlots(int(options.get("max_loras", 1)), int(options.get("max_lora_rank", 16)))


def lora_bytes(facts: ModelFacts, tensor_parallel: int, pipeline_parallel: int) -> int:
    """Memory of the slots on one card, in bytes: they are there whether adapters are in them or not.

    Every linear layer of a block has, per slot, A (rank x input) and B (output x rank)
    (`BaseLinearLayerWithLoRA.create_lora_weights` in `vllm/lora/layers/base_linear.py`). Where a
    layer's output is divided among cards, A is whole on each; where its input is, B is.
    """
    slots = facts.lora
    if slots is None:
        return 0
    queries, keys = facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
    hidden, inner, cards = facts.hidden, facts.intermediate, tensor_parallel
    by_output = 3 * hidden + (queries + 2 * keys) / cards
    by_input = queries / cards + hidden
    mlp = (2 * hidden + 2 * inner / cards) + (inner / cards + hidden)
    if facts.experts:
        width = facts.experts.intermediate / cards
        mlp = facts.experts.count * (3 * hidden + 3 * width)
    layers = math.ceil(facts.layers / pipeline_parallel)
    return math.ceil(
        slots.count * slots.rank * layers * (by_output + by_input + mlp) * facts.dtype_bytes
    )
