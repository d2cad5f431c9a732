"""Makes a tiny random BERT embedding model folder in a fraction of a second, without torch."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

VOCAB = 1024
HIDDEN = 128  # heads of 32: vLLM on CPU has no kernel for smaller ones
LAYERS = 2
HEADS = 4
INTER = 256
CONTEXT = 128
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CLS, SEP = 2, 3


def make_tiny_bert(folder: Path, *, seed: int = 0, pooling: str | None = "mean") -> Path:
    """Write a BertModel with tokenizer and, unless `pooling` is None, sentence-transformers' files."""
    folder.mkdir(parents=True, exist_ok=True)
    _make_tokenizer(folder, seed)
    _write(folder / "config.json", _config())
    save_file(_weights(seed), folder / "model.safetensors", metadata={"format": "pt"})
    if pooling is not None:
        write_modules(folder, pooling)
    return folder


def write_modules(folder: Path, pooling: str) -> None:
    """The files by which sentence-transformers knows how a model pools."""
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(kinds)
    ]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    names = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken", "max": "max_tokens"}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{name}": kind == pooling for kind, name in names.items()}
    _write(folder / "1_Pooling/config.json", {"word_embedding_dimension": HIDDEN, **modes})


def texts(count: int, seed: int = 0) -> list[str]:
    """Made-up sentences of very different lengths."""
    rng = random.Random(seed)
    words = [word for line in _sentences(1) for word in line.split()]
    return [" ".join(rng.choices(words, k=rng.choice([1, 2, 5, 10, 30, 60]))) for _ in range(count)]


def _make_tokenizer(folder: Path, seed: int) -> None:
    tokenizer = Tokenizer(models.WordPiece(_vocabulary(seed), unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = ["pad", "unk", "cls", "sep", "mask"]
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": CONTEXT,
            **{f"{role}_token": text for role, text in zip(roles, SPECIALS, strict=True)},
        },
    )


def _vocabulary(seed: int) -> dict[str, int]:
    """Letters and some whole words: a trainer would break ties by chance."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,:!?-"
    words = sorted({word for line in _sentences(seed) for word in line.split()})
    pieces = [*SPECIALS, *letters, *(f"##{letter}" for letter in letters), *words[::2]]
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}


def _sentences(seed: int) -> list[str]:
    rng = random.Random(seed)
    onsets = ["b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "th", "st"]
    rimes = ["a", "e", "i", "o", "an", "er", "in", "on", "all", "ing", "ent", "est"]
    made = ["".join(rng.choice(onsets) + rng.choice(rimes) for _ in range(2)) for _ in range(500)]
    return [" ".join(rng.choices(made, k=12)) for _ in range(400)]


def _config() -> dict[str, Any]:
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": HIDDEN,
        "intermediate_size": INTER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "torch_dtype": "float32",
    }


def _weights(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    weights = {
        "embeddings.word_embeddings.weight": normal(VOCAB, HIDDEN),
        "embeddings.position_embeddings.weight": normal(CONTEXT, HIDDEN),
        "embeddings.token_type_embeddings.weight": normal(2, HIDDEN),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}."
        for name, out, into in (
            ("attention.self.query", HIDDEN, HIDDEN), ("attention.self.key", HIDDEN, HIDDEN),
            ("attention.self.value", HIDDEN, HIDDEN), ("attention.output.dense", HIDDEN, HIDDEN),
            ("intermediate.dense", INTER, HIDDEN), ("output.dense", HIDDEN, INTER),
        ):  # fmt: skip
            weights[f"{at}{name}.weight"] = normal(out, into)
            weights[f"{at}{name}.bias"] = normal(out)
        norms += [f"{at}attention.output.LayerNorm", f"{at}output.LayerNorm"]
    for name in norms:
        weights[f"{name}.weight"] = np.ones(HIDDEN, np.float32)
        weights[f"{name}.bias"] = np.zeros(HIDDEN, np.float32)
    return weights


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
