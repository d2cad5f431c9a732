"""Makes tiny random LoRA adapters for the tiny Qwen2 model, in peft's files but without peft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.support.tiny_model import HEADS, HIDDEN, KV_HEADS, LAYERS


def make_tiny_lora(
    folder: Path, *, seed: int, rank: int = 8, hidden: int = HIDDEN, **config: Any
) -> Path:
    """Write an adapter of the query and value projections, strong enough to change answers."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(LAYERS):
        for name, rows in (("q_proj", HIDDEN), ("v_proj", HIDDEN // HEADS * KV_HEADS)):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{at}.lora_A.weight"] = rng.standard_normal((rank, hidden)) * 0.5
            tensors[f"{at}.lora_B.weight"] = rng.standard_normal((rows, rank)) * 0.5
    arrays = {name: value.astype(np.float32) for name, value in tensors.items()}
    save_file(arrays, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    written = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(written))
    return folder
