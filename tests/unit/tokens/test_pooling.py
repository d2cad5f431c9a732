"""What is read of an embedding model's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batchwright.config.job import Job
from batchwright.core.errors import JobError
from batchwright.tokens.pooling import input_length, resolve_embedding
from tests.support.tiny_bert import HIDDEN, make_tiny_bert


def job(model: Path | str, kind: str = "torch", **embedding: Any) -> Job:
    return Job.model_validate(
        {
            "input": {"path": "x"},
            "task": "embed",
            "model": {"name": str(model)},
            "engine": {"kind": kind},
            "embedding": embedding,
        }
    )


def add_to(path: Path, **values: Any) -> None:
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, **values}))


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_pooling_and_dimensions_are_the_models_own(tmp_path: Path, pooling: str) -> None:
    known = resolve_embedding(job(make_tiny_bert(tmp_path, pooling=pooling))).embedding
    assert (known.pooling, known.dimensions) == (pooling, HIDDEN)


def test_the_newer_form_of_the_pooling_file_is_read(tmp_path: Path) -> None:
    make_tiny_bert(tmp_path)
    path = tmp_path / "1_Pooling/config.json"
    path.write_text('{"embedding_dimension": 128, "pooling_mode": "lasttoken"}')
    assert resolve_embedding(job(tmp_path)).embedding.pooling == "last"


def test_the_job_wins_over_the_model(tmp_path: Path) -> None:
    model = make_tiny_bert(tmp_path)
    known = resolve_embedding(job(model, pooling="cls", dimensions=8)).embedding
    assert (known.pooling, known.dimensions) == ("cls", 8)


@pytest.mark.parametrize(("pooling", "said"), [(None, "do not say"), ("max", "max_tokens")])
def test_pooling_is_never_guessed(tmp_path: Path, pooling: str | None, said: str) -> None:
    with pytest.raises(JobError, match=said):
        resolve_embedding(job(make_tiny_bert(tmp_path, pooling=pooling)))


def test_more_dimensions_than_the_model_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="is 500, but the model makes 128"):
        resolve_embedding(job(make_tiny_bert(tmp_path), dimensions=500))


def test_layers_after_the_pooling_are_for_vllm(tmp_path: Path) -> None:
    model = make_tiny_bert(tmp_path)
    modules = json.loads((model / "modules.json").read_text())
    modules.append({"type": "sentence_transformers.models.Dense", "path": "3_Dense"})
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "3_Dense").mkdir()
    add_to(model / "3_Dense/config.json", in_features=128, out_features=32)
    with pytest.raises(JobError, match="Dense"):
        resolve_embedding(job(model))
    assert resolve_embedding(job(model, "vllm")).embedding.dimensions == 32


def test_without_a_model_a_dry_run_has_vectors_all_the_same() -> None:
    assert resolve_embedding(job("", "fake")).embedding.dimensions == 384


@pytest.mark.parametrize(
    ("config", "sentence", "length"),
    [
        ({}, {}, 128),
        ({}, {"max_seq_length": 64}, 64),
        ({"model_type": "xlm-roberta", "pad_token_id": 1, "max_position_embeddings": 514}, {}, 512),
        ({"model_type": "mpnet", "pad_token_id": 1, "max_position_embeddings": 514},
         {"max_seq_length": 384}, 384),
    ],
)  # fmt: skip
def test_how_much_a_model_reads(
    tmp_path: Path, config: dict[str, Any], sentence: dict[str, Any], length: int
) -> None:
    model = make_tiny_bert(tmp_path)
    add_to(model / "config.json", **config)
    add_to(model / "sentence_bert_config.json", **sentence)
    assert input_length(job(model)) == length
