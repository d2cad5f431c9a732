"""A small model folder for machines without one: a real tokenizer, a config, dummy weights."""

from __future__ import annotations

import json
import random
from pathlib import Path

VOCABULARY = 4096
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ONSETS = ["b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "th", "st", "pr"]
RIMES = ["a", "e", "i", "o", "an", "er", "in", "on", "all", "ing", "ent", "est", "ou", "ight"]

# Millions of parameters: 1 shows what surrounds the engine, 25 what an engine at work hides.
SHAPES = {
    "1m": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2},
    "25m": {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8},
}


def make_model(folder: Path, shape: str) -> Path:
    """Write a Qwen2 model of this shape, to be started with `load_format=dummy`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    words = sorted(
        {"".join(rng.choice(ONSETS) + rng.choice(RIMES) for _ in range(2)) for _ in range(2000)}
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    lines = [" " + " ".join(rng.choices(words, k=12)) for _ in range(3000)]
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"},
    )
    _write(
        folder / "config.json",
        {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            **SHAPES[shape],
            "num_attention_heads": SHAPES[shape]["hidden_size"] // 64,
            "num_key_value_heads": max(1, SHAPES[shape]["hidden_size"] // 256),
            # Some ids stay unused: no tokenizer has to fill the table.
            "vocab_size": VOCABULARY,
            "tie_word_embeddings": True,
            "max_position_embeddings": 4096,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        },
    )
    return folder


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")
