"""Puts heads on the tiny models: classifiers, cross-encoders and reward models, without torch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.support.tiny_bert import HIDDEN, make_tiny_bert
from tests.support.tiny_model import HIDDEN as QWEN_HIDDEN

STEP_TOKEN = "<|im_start|>"


def make_bert_head(folder: Path, labels: Sequence[str], *, seed: int = 0, **config: Any) -> Path:
    """A BertForSequenceClassification: a classifier, or with one label a cross-encoder."""
    make_tiny_bert(folder, seed=seed, pooling=None)
    rng = np.random.default_rng(seed + 1)
    head = {
        "bert.pooler.dense.weight": _normal(rng, 0.1, HIDDEN, HIDDEN),
        "bert.pooler.dense.bias": _normal(rng, 0.1, HIDDEN),
        "classifier.weight": _normal(rng, 0.2, len(labels), HIDDEN),
        "classifier.bias": _normal(rng, 0.2, len(labels)),
    }
    _rewrite(folder, "BertForSequenceClassification", "bert.", head, {**_named(labels), **config})
    names = ["input_ids", "token_type_ids", "attention_mask"]
    _add(folder / "tokenizer_config.json", {"model_input_names": names})
    return folder


def make_qwen_head(folder: Path, body: Path, labels: Sequence[str], *, seed: int = 0) -> Path:
    """A Qwen2ForSequenceClassification on a tiny model's body: its last token tells."""
    shutil.copytree(body, folder)
    rng = np.random.default_rng(seed + 1)
    head = {"score.weight": _normal(rng, 0.2, len(labels), QWEN_HIDDEN)}
    config = {**_named(labels), "pad_token_id": 0}
    _rewrite(folder, "Qwen2ForSequenceClassification", "", head, config)
    return folder


def make_qwen_reward(folder: Path, body: Path, outputs: int, *, seed: int = 0) -> Path:
    """With one output a Qwen2ForRewardModel, with two a Qwen2ForProcessRewardModel."""
    shutil.copytree(body, folder)
    rng = np.random.default_rng(seed + 1)
    head = {
        "score.0.weight": _normal(rng, 0.1, QWEN_HIDDEN, QWEN_HIDDEN),
        "score.0.bias": _normal(rng, 0.1, QWEN_HIDDEN),
        "score.2.weight": _normal(rng, 0.2, outputs, QWEN_HIDDEN),
        "score.2.bias": _normal(rng, 0.2, outputs),
    }
    kind = "Qwen2ForRewardModel" if outputs == 1 else "Qwen2ForProcessRewardModel"
    config = _named(["reward"] if outputs == 1 else ["bad", "good"])
    _rewrite(folder, kind, "", head, {**config, "pad_token_id": 0})
    return folder


def _named(labels: Sequence[str]) -> dict[str, Any]:
    return {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }


def _normal(rng: np.random.Generator, width: float, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) * width).astype(np.float32)


def _rewrite(
    folder: Path, kind: str, prefix: str, head: dict[str, np.ndarray], config: dict[str, Any]
) -> None:
    """Name the model after its new head, and put it into its weights."""
    path = folder / "model.safetensors"
    body = {f"{prefix}{name}": weight for name, weight in load_file(path).items()}
    save_file({**body, **head}, path, metadata={"format": "pt"})
    _add(folder / "config.json", {**config, "architectures": [kind]})


def _add(path: Path, values: dict[str, Any]) -> None:
    known = json.loads(path.read_text())
    path.write_text(json.dumps({**known, **values}, indent=1) + "\n")
