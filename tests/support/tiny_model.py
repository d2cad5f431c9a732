"""Makes a tiny random Qwen2 model folder in about a second, without torch."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB = 4096
HIDDEN = 128
LAYERS = 2
HEADS = 4
KV_HEADS = 2
INTER = 384
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

COMMON = """
the of and to in is it that was for on are as with his they at be this from have or by one had not
but what all were when we there can an your which their said if do will each question answer user
assistant system write a short story about number 1 2 3 10 100
"""

CHATML = (
    "{%- if tools %}{{- '<|im_start|>tools\\n' }}{%- for tool in tools %}{{- tool | tojson }}"
    "{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def make_tiny_model(folder: Path, *, seed: int = 0) -> Path:
    """Write config, weights, tokenizer and chat template into `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer(folder, seed=seed)
    _write(folder / "config.json", _config())
    _write(
        folder / "generation_config.json",
        {"bos_token_id": 0, "eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": False},
    )
    save_file(_weights(seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def make_tokenizer(
    folder: Path,
    *,
    seed: int = 0,
    chat_template: str | None = CHATML,
    specials: list[str] = SPECIALS,
) -> Path:
    """Write only the tokenizer's files."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sentences(seed), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
    if chat_template is not None:
        config["chat_template"] = chat_template
        (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    _write(folder / "tokenizer_config.json", config)
    return folder


def _sentences(seed: int) -> list[str]:
    """Made-up words, common English ones among them, so that merges are many and repeatable."""
    rng = random.Random(seed)
    onsets = ["b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "th", "st", "pr"]
    rimes = ["a", "e", "i", "o", "an", "er", "in", "on", "all", "ing", "ent", "est", "ou", "ight"]
    made = ["".join(rng.choice(onsets) + rng.choice(rimes) for _ in range(3)) for _ in range(3000)]
    common = COMMON.split()
    lines = [" ".join(rng.choices(common + made, k=12)) + "." for _ in range(2500)]
    return [*lines, "Grüße, café: 你好 世界 🎉 — «да»"] * 2


def _config() -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": HIDDEN,
        "intermediate_size": INTER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCAB,
        "tie_word_embeddings": True,
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "use_sliding_window": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def _weights(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.15).astype(np.float32)

    def ones() -> np.ndarray:
        return np.ones(HIDDEN, dtype=np.float32)

    kv = HIDDEN // HEADS * KV_HEADS
    weights = {"model.embed_tokens.weight": normal(VOCAB, HIDDEN), "model.norm.weight": ones()}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        weights[at + "input_layernorm.weight"] = ones()
        weights[at + "post_attention_layernorm.weight"] = ones()
        for name, rows in (("q", HIDDEN), ("k", kv), ("v", kv)):
            weights[f"{at}self_attn.{name}_proj.weight"] = normal(rows, HIDDEN)
            weights[f"{at}self_attn.{name}_proj.bias"] = normal(rows)
        weights[at + "self_attn.o_proj.weight"] = normal(HIDDEN, HIDDEN)
        weights[at + "mlp.gate_proj.weight"] = normal(INTER, HIDDEN)
        weights[at + "mlp.up_proj.weight"] = normal(INTER, HIDDEN)
        weights[at + "mlp.down_proj.weight"] = normal(HIDDEN, INTER)
    return weights


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
