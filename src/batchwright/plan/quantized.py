"""Bytes of quantised weights.

Only the matrices of the blocks are quantised; embeddings and norms keep the model's dtype. Bits
per weight with the scales:

- fp8: 8 (scales per tensor, channel or 128 x 128 block: under 0.1 %).
- awq, gptq: `bits` + a 16-bit scale and a `bits`-bit zero per group (AWQ, arXiv 2306.00978; GPTQ,
  arXiv 2210.17323; group_size 128 by default): 4.16 for 4 bits.
- bitsandbytes NF4: 4 + a 32-bit absmax per 64 weights = 4.5 (QLoRA, arXiv 2305.14314); int8: 8.
- nvfp4: 4 + an fp8 scale per 16 = 4.5 (NVIDIA ModelOpt, compressed-tensors).
- mxfp4: 4 + an 8-bit scale per 32 = 4.25, experts only (OCP Microscaling Formats 1.0; gpt-oss).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchwright.core.errors import JobError
from batchwright.plan.parameters import Parameters, Shape

# What vLLM can do to an unquantised checkpoint while it loads it, with the bits per weight. `fp8`
# and `bitsandbytes` are of versions before 0.32; the others are 0.32's own (`_ONLINE_SHORTHANDS` in
# `vllm/config/quantization.py`). mxfp8 has an 8-bit scale per 32 weights, nvfp4 one per 16.
ON_LOAD = {
    "fp8": 8.0, "bitsandbytes": 4.5, "fp8_per_tensor": 8.0, "fp8_per_block": 8.0,
    "fp8_per_channel": 8.0, "int8_per_channel_weight_only": 8.0, "mxfp8": 8.25,
    "nvfp4_per_token": 4.5,
}  # fmt: skip
_ALIASES = {"awq_marlin": "awq", "auto_awq": "awq", "gptq_marlin": "gptq", "auto_gptq": "gptq", "fbgemm_fp8": "fp8", "gpt_oss_mxfp4":
            "mxfp4"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the weights are stored. `bits` None: unknown method, only the index knows the size."""

    name: str = "none"
    bits: float | None = 16.0
    experts_only: bool = False
    fp8_compute: bool = False
    on_load: bool = False

    def weight_bytes(self, counts: Parameters, shape: Shape, dtype_bytes: int) -> int:
        """All weights in memory, computed."""
        if self.name == "none":
            return counts.total * dtype_bytes
        if self.bits is None:
            return counts.total * dtype_bytes  # an upper bound: the index is asked first
        embeddings = shape.vocab * shape.hidden * (1 if shape.tie_embeddings else 2)
        body = counts.total - embeddings
        packed = counts.experts if self.experts_only else body
        plain = body - packed + embeddings
        return round(packed * self.bits / 8) + plain * dtype_bytes


def find_quantization(config: Mapping[str, Any] | None, asked: str | None) -> Quantization:
    """The checkpoint's quantisation, or the one asked for while loading.

    Raises:
        JobError: the one asked for needs another checkpoint.
    """
    wanted = _ALIASES.get(asked, asked) if asked and asked != "none" else None
    if not config:
        return _on_load(wanted)
    method = str(config.get("quant_method") or "unknown")
    found = _stored(_ALIASES.get(method, method), config)
    if wanted and wanted not in {found.name, method}:
        raise JobError(
            f"quantization {asked} was asked for, but the checkpoint is quantised by {method}",
            "Leave engine.options.quantization out, or use the unquantised checkpoint.",
        )
    return found


def _on_load(wanted: str | None) -> Quantization:
    if wanted is None:
        return Quantization()
    if wanted not in ON_LOAD:
        raise JobError(
            f"quantization {wanted} needs a checkpoint that was quantised so; this one is not",
            f"While loading, vLLM can do: {', '.join(ON_LOAD)}.",
        )
    experts_only = wanted == "nvfp4_per_token"
    fp8 = wanted.startswith("fp8")
    return Quantization(wanted, ON_LOAD[wanted], experts_only, fp8_compute=fp8, on_load=True)


def _stored(method: str, config: Mapping[str, Any]) -> Quantization:
    if method in {"awq", "gptq"}:
        bits = int(config.get("bits") or config.get("w_bit") or 4)
        group = int(config.get("group_size") or config.get("q_group_size") or 128)
        scales = (16 + bits) / group if group > 0 else 0.0
        return Quantization(method, bits + scales)
    if method == "modelopt" and "FP4" in str(config.get("quant_algo") or "").upper():
        return Quantization(method, 4.5)
    if method in {"fp8", "modelopt"}:
        return Quantization(method, 8.0, fp8_compute=True)
    if method == "bitsandbytes":
        return Quantization(method, 8.0 if config.get("load_in_8bit") else 4.5)
    if method == "mxfp4":
        return Quantization(method, 4.25, experts_only=True)
    if method == "compressed-tensors":
        return _compressed(config)
    return Quantization(method, None)


def _compressed(config: Mapping[str, Any]) -> Quantization:
    """The compressed-tensors format: bits and group size of the first group of layers."""
    groups = list((config.get("config_groups") or {}).values())
    weights = (groups[0].get("weights") or {}) if groups else {}
    inputs = (groups[0].get("input_activations") or {}) if groups else {}
    bits = int(weights.get("num_bits") or 8)
    group = int(weights.get("group_size") or 0)
    # NVFP4 has an fp8 scale per group, the others a 16-bit one.
    scale_bits = 8 if (bits, weights.get("type")) == (4, "float") else 16
    scales = scale_bits / group if group > 0 else 0.0
    fp8 = bits == 8 and weights.get("type") == "float" and bool(inputs)
    return Quantization("compressed-tensors", bits + scales, fp8_compute=fp8)
