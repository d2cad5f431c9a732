"""What stands beside a model's own weights: room for LoRA adapters, and a draft model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoraSlots:
    """Adapters that one batch may mix, and the largest rank that their slots are made for."""

    count: int
    rank: int


@dataclass(frozen=True, slots=True)
class Draft:
    """What proposes tokens in speculative decoding.

    Attributes:
        method: by vLLM's name.
        tokens: proposed in each step, after which the model checks them all at once.
        weight_bytes: beside the model's own; 0 if nothing is loaded.
        layers: with a KV cache of their own.
        kv_values: numbers cached per token and layer.
        kv_value_bytes: of one such number.
    """

    method: str
    tokens: int
    weight_bytes: int = 0
    layers: int = 0
    kv_values: int = 0
    kv_value_bytes: float = 2.0

    @property
    def kv_bytes_per_token(self) -> float:
        """KV cache of one token in the draft's layers."""
        return self.layers * self.kv_values * self.kv_value_bytes
