"""What is read of the files of a model that makes scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from batchwright.config.job import Job
from batchwright.core.errors import JobError
from batchwright.tokens.pooling import resolve_embedding
from batchwright.tokens.scoring import resolve_scoring
from tests.support.tiny_bert import write_modules


def model(folder: Path, architecture: str, labels: Sequence[str] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {"architectures": [architecture], "hidden_size": 8}
    if labels is not None:  # in the order of their text, as some writers sort them
        numbered = sorted((str(index), label) for index, label in enumerate(labels))
        config["id2label"] = dict(numbered)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def job(path: Path | str, task: str, options: dict[str, Any] | None = None, **scoring: Any) -> Job:
    return Job.model_validate(
        {
            "input": {"path": "x"}, "task": task, "model": {"name": str(path)}, "scoring": scoring,
            "engine": {"options": options or {}},
        }
    )  # fmt: skip


def test_labels_are_in_the_order_of_the_outputs(tmp_path: Path) -> None:
    names = [f"label {index}" for index in range(12)]
    found = resolve_scoring(
        job(model(tmp_path, "BertForSequenceClassification", names), "classify")
    )
    assert found.scoring.labels == names
    assert (found.scoring.method, found.scoring.raw) == ("head", False)


def test_a_config_without_labels_has_two(tmp_path: Path) -> None:
    found = resolve_scoring(job(model(tmp_path, "BertForSequenceClassification"), "classify"))
    assert found.scoring.labels == ["LABEL_0", "LABEL_1"]


@pytest.mark.parametrize(
    ("architecture", "labels", "task", "method", "raw"),
    [
        ("BertForSequenceClassification", ["x"], "score", "head", False),
        ("LlamaForSequenceClassification", ["x"], "reward", "head", True),
        ("InternLM2ForRewardModel", ["x"], "reward", "tokens", True),
        ("Qwen2ForRewardModel", ["x"], "reward", "tokens", True),
    ],
)
def test_the_method_is_the_architectures(
    architecture: str, labels: list[str], task: str, method: str, raw: bool, tmp_path: Path
) -> None:
    asked = job(model(tmp_path, architecture, labels), task)
    # A reward model's config may leave its labels at two: only what runs can tell.
    found = resolve_scoring(asked).scoring
    assert (found.method, found.raw) == (method, raw)


def test_a_process_reward_model_needs_its_step_token(tmp_path: Path) -> None:
    path = model(tmp_path, "Qwen2ForProcessRewardModel")
    with pytest.raises(JobError, match=r"needs scoring.step_token"):
        resolve_scoring(job(path, "reward"))
    found = resolve_scoring(job(path, "reward", step_token="<extra_0>")).scoring
    assert (found.method, found.raw) == ("steps", False)


@pytest.mark.parametrize(
    ("architecture", "labels", "task", "scoring", "said"),
    [
        ("BertModel", None, "classify", {}, "needs a classification head"),
        ("Qwen2ForCausalLM", None, "reward", {}, "needs a head with one output"),
        ("BertForSequenceClassification", ["a", "b"], "score", {}, "has 2: a, b"),
        ("BertForSequenceClassification", ["a", "b"], "classify", {"labels": ["c"]}, "names 1"),
        ("BertForSequenceClassification", ["a", "b"], "classify", {"labels": ["c", "c"]}, "once"),
        ("BertForSequenceClassification", ["a"], "score", {"step_token": "x"}, "process reward"),
        ("BertForSequenceClassification", ["a"], "score", {"method": "steps"}, "takes"),
    ],
)
def test_a_model_of_another_kind_is_refused(
    architecture: str, labels: Any, task: str, scoring: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(JobError, match=said):
        resolve_scoring(job(model(tmp_path, architecture, labels), task, **scoring))


def test_what_the_engine_lays_on_top_of_the_config_counts(tmp_path: Path) -> None:
    path = model(tmp_path, "Qwen2ForCausalLM", ["x"])
    laid = {"hf_overrides": {"architectures": ["Qwen2ForSequenceClassification"]}}
    assert resolve_scoring(job(path, "score", laid)).scoring.method == "head"


def test_an_embedding_model_scores_by_its_vectors(tmp_path: Path) -> None:
    path = model(tmp_path, "BertModel")
    write_modules(path, "cls")
    found = resolve_scoring(job(path, "score"))
    assert (found.scoring.method, found.embedding.pooling) == ("vectors", "cls")


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, "D: "), ({"prompt_name": "query"}, "Q: "), ({"prompt": "own "}, "own "),
        ({"prompt": ""}, ""),
    ],
)  # fmt: skip
def test_a_prompt_is_taken_by_its_name(asked: Any, wanted: str, tmp_path: Path) -> None:
    path = model(tmp_path, "BertModel")
    write_modules(path, "mean")
    prompts = {"prompts": {"query": "Q: ", "d": "D: "}, "default_prompt_name": "d"}
    (path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    given = Job.model_validate(
        {"input": {"path": "x"}, "task": "embed", "model": {"name": str(path)}, "embedding": asked}
    )
    found = resolve_embedding(given).embedding
    assert (found.prompt, found.prompt_name) == (wanted, None)
    with pytest.raises(JobError, match="no such prompt.*'query', 'd'"):
        resolve_embedding(
            given.model_copy(
                update={"embedding": found.model_copy(update={"prompt": None, "prompt_name": "x"})}
            )
        )
