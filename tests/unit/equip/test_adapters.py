from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from batchwright.config.job import Job
from batchwright.config.load import load_job, make_job
from batchwright.core.errors import JobError
from batchwright.equip.adapters import adapter_marks, adapter_options, check_adapters, other_bases
from batchwright.equip.coherence import check_engine
from batchwright.equip.compatibility import check_compatible, with_companions
from batchwright.plan.gpus import find_gpu
from batchwright.plan.model_facts import model_facts
from tests.support.tiny_lora import make_tiny_lora


def job(model: Path, adapters: dict[str, str], **options: Any) -> Job:
    return make_job(
        {
            "input": {"path": "rows.jsonl"},
            "model": {"name": str(model), "adapters": adapters},
            "engine": {"kind": "vllm", "options": options},
        },
        {},
    )


@pytest.fixture
def lora(tmp_path: Path) -> Path:
    return make_tiny_lora(tmp_path / "lora", seed=1)


def test_an_adapter_that_fits(tiny_model: Path, lora: Path) -> None:
    fine = job(tiny_model, {"mine": str(lora)})
    (facts,) = check_adapters(fine)
    assert (facts.name, facts.rank) == ("mine", 8)
    assert adapter_options(fine)["max_lora_rank"] == 8
    assert other_bases(fine) == []
    check_engine(fine)


def test_what_is_wrong_with_a_folder_is_said_before_the_engine_starts(
    tiny_model: Path, lora: Path, tmp_path: Path
) -> None:
    def refused(path: Path | str, words: str) -> None:
        with pytest.raises(JobError, match=words) as raised:
            check_engine(job(tiny_model, {"mine": str(path)}))
        assert "mine" in str(raised.value)
        assert raised.value.hint

    refused(tmp_path / "none", "there is no folder")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "has no adapter_config.json")
    refused(make_tiny_lora(tmp_path / "wide", seed=1, hidden=64), "64 numbers")
    refused(make_tiny_lora(tmp_path / "dora", seed=1, use_dora=True), "DoRA")
    weights = lora / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    refused(lora, "damaged")
    weights.write_bytes(b"{}")
    refused(lora, "damaged")
    weights.unlink()
    refused(lora, "no weights")


def test_an_adapter_of_another_base_is_told(tiny_model: Path, tmp_path: Path) -> None:
    other = make_tiny_lora(tmp_path / "o", seed=1, base_model_name_or_path="org/Other-7B")
    (note,) = other_bases(job(tiny_model, {"mine": str(other)}))
    assert "trained on org/Other-7B" in note


def test_another_content_is_another_mark(tiny_model: Path, lora: Path) -> None:
    model = job(tiny_model, {"mine": str(lora), "hub": "org/lora"}).model
    before = adapter_marks(model)
    assert before["hub"] == "org/lora"
    assert adapter_marks(model) == before
    os.utime(lora / "adapter_model.safetensors", ns=(1, 1))
    after = adapter_marks(model)
    assert after["mine"] != before["mine"]
    config = lora / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "lora_alpha": 99}))
    assert adapter_marks(model)["mine"] != after["mine"]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"adapter": "x"}, "x is not one of adapters"),
        ({"name": "org/m", "adapters": {"org/m": "y"}}, "the model's own name"),
    ],
)
def test_names_that_contradict_each_other(model: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        make_job({"input": {"path": "rows.jsonl"}, "model": model}, {})


def test_paths_are_relative_to_the_job_file(tmp_path: Path) -> None:
    make_tiny_lora(tmp_path / "loras" / "one", seed=1)
    (tmp_path / "job.yaml").write_text(
        "input: {path: rows.jsonl}\n"
        "model: {name: org/m, adapters: {one: loras/one, hub: org/lora}, chat_template: rag}\n"
    )
    model = load_job(tmp_path / "job.yaml").model
    assert model.adapters == {"one": str(tmp_path / "loras" / "one"), "hub": "org/lora"}
    assert model.chat_template == "rag"


def test_a_setting_that_cannot_work_is_refused_with_the_cure(tiny_model: Path, lora: Path) -> None:
    with pytest.raises(JobError, match=r"engine.options.max_lora_rank: 12 is none of") as raised:
        check_compatible(job(tiny_model, {"a": str(lora)}, max_lora_rank=12), None, on_cpu=True)
    assert "Leave it out" in str(raised.value)
    with pytest.raises(JobError, match="compute capability 8.0"):
        asked = job(tiny_model, {}).model_copy(deep=True)
        model = asked.model.model_copy(update={"dtype": "bfloat16"})
        check_compatible(asked.model_copy(update={"model": model}), find_gpu("T4"), on_cpu=False)


def test_a_draft_model_that_is_not_there(tiny_model: Path, tmp_path: Path) -> None:
    draft = {"method": "draft_model", "model": str(tmp_path / "none"), "num_speculative_tokens": 3}
    with pytest.raises(JobError, match="the draft model: model folder .* does not exist"):
        check_engine(job(tiny_model, {}, speculative_config=draft))


def test_the_plan_counts_adapters_and_draft(tiny_model: Path, lora: Path) -> None:
    draft = {"method": "draft_model", "model": str(tiny_model) + "/", "num_speculative_tokens": 3}
    asked = job(tiny_model, {"a": str(lora)}, speculative_config=draft)
    config = json.loads((tiny_model / "config.json").read_text())
    facts = with_companions(asked, model_facts(config, weight_bytes=None), config)
    assert facts.lora is not None
    assert (facts.lora.count, facts.lora.rank) == (1, 8)
    assert facts.draft is not None
    # Stored in 32 bits, loaded in 16.
    assert facts.draft.weight_bytes == (tiny_model / "model.safetensors").stat().st_size // 2
    assert facts.draft.tokens == 3
