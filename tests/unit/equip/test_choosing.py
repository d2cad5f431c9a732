"""Which engine a job runs on where it does not say: each condition from both sides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batchwright.cli.options import job_alone, job_and_dir
from batchwright.config.job import Job
from batchwright.config.load import make_job
from batchwright.core.errors import JobError
from batchwright.equip import choosing
from batchwright.equip.choosing import ModelFiles, choose_by_job, choose_by_model, with_engine
from batchwright.foresight.survey import survey
from batchwright.machine.hardware import LocalGpus
from batchwright.ray import stream_job
from tests.support.tiny_bert import make_tiny_bert
from tests.unit.rundir.small_runs import prompts, small_run, write_rows

BERT: dict[str, Any] = {"model_type": "bert"}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that this machine does not have."""
    monkeypatch.setattr(choosing, "local_gpus", lambda: LocalGpus("NVIDIA H200", 1, 141 << 30))


def job(**settings: Any) -> Job:
    overrides = {key.replace("__", "."): value for key, value in settings.items()}
    return make_job({"input": {"path": "x"}, "task": "embed"}, overrides)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"engine__options": {"max_num_seqs": 8, "max_model_len": 64}},
        {"engine__options": {"load_format": "dummy", "omp_num_threads": 1}},
        {"model__dtype": "float32", "model__trust_remote_code": True},
        {"run__replicas": 2, "embedding__dimensions": 8},
    ],
)
def test_what_both_engines_have_leaves_it_to_the_model(settings: dict[str, Any]) -> None:
    assert choose_by_job(job(**settings)) is None


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"engine__options": {"tensor_parallel_size": 2}}, "engine.options.tensor_parallel_size"),
        ({"engine__options": {"quantization": "fp8"}}, "engine.options.quantization"),
        ({"engine__options": {"load_format": "gguf"}}, "engine.options.load_format"),
        ({"model__adapters": {"mine": "lora"}}, "model.adapters"),
    ],
)
def test_what_only_vllm_has_is_for_vllm(settings: dict[str, Any], why: str) -> None:
    choice = choose_by_job(job(**settings))
    assert choice is not None
    assert choice.kind == "vllm"
    assert why in choice.why


@pytest.mark.parametrize("name", ["attention", "device", "max_batch_tokens"])
def test_what_only_torch_has_is_for_torch(name: str) -> None:
    choice = choose_by_job(job(engine__options={name: "x"}))
    assert choice is not None
    assert choice.kind == "torch"
    assert name in choice.why


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "camembert"])
def test_common_encoders_run_on_torch_if_there_is_a_gpu(kind: str) -> None:
    choice = choose_by_model(ModelFiles({"model_type": kind}), on_gpu=True)
    assert choice.kind == "torch"
    assert kind in choice.why
    choice = choose_by_model(ModelFiles({"model_type": kind}), on_gpu=False)
    assert choice.kind == "vllm"
    assert "no GPU" in choice.why


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (ModelFiles({}), "no config.json"),
        (ModelFiles({"model_type": "qwen3"}), "qwen3"),
        (ModelFiles({"model_type": "mpnet"}), "mpnet"),
        (ModelFiles({**BERT, "auto_map": {"AutoModel": "x"}}), "code of its own"),
        (ModelFiles({**BERT, "position_embedding_type": "alibi"}), "positions"),
        (ModelFiles({**BERT, "quantization_config": {"bits": 8}}), "quantised"),
        (ModelFiles(BERT, layers_after=("Dense",)), "Dense"),
        (ModelFiles(BERT, has_weights=False), "safetensors"),
    ],
)
def test_other_models_run_on_vllm(model: ModelFiles, why: str) -> None:
    choice = choose_by_model(model, on_gpu=True)
    assert choice.kind == "vllm"
    assert why in choice.why


def test_absolute_positions_are_those_of_a_common_encoder() -> None:
    config = {**BERT, "position_embedding_type": "absolute", "quantization_config": None}
    assert choose_by_model(ModelFiles(config), on_gpu=True).kind == "torch"


@pytest.mark.parametrize("kind", ["vllm", "torch", "openai", "fake"])
def test_an_engine_that_is_named_wins(kind: str, tiny_bert: Path) -> None:
    named = job(engine__kind=kind, model__name=str(tiny_bert))
    assert with_engine(named) == (named, "")


@pytest.mark.parametrize("task", ["generate", "classify", "score", "reward"])
def test_other_tasks_run_on_vllm_and_no_file_is_read(task: str) -> None:
    chosen, why = with_engine(job(task=task, model__name="/none"))
    assert (chosen.engine.kind, why) == ("vllm", "")


@pytest.mark.usefixtures("gpu")
def test_the_model_folder_decides(tiny_bert: Path, tiny_model: Path, tmp_path: Path) -> None:
    chosen, why = with_engine(job(model__name=str(tiny_bert)))
    assert (chosen.engine.kind, why) == (
        "torch", "engine: torch, which runs small encoders (bert) faster than vLLM",
    )  # fmt: skip
    assert with_engine(job(model__name=str(tiny_model)))[0].engine.kind == "vllm"
    assert with_engine(job(model__name=""))[0].engine.kind == "vllm"
    (tmp_path / "model.gguf").touch()
    assert with_engine(job(model__name=str(tmp_path / "model.gguf")))[0].engine.kind == "vllm"
    with pytest.raises(JobError, match="no folder"):
        with_engine(job(model__name=str(tmp_path / "none")))


@pytest.mark.usefixtures("gpu")
def test_weights_of_another_form_are_for_vllm(tmp_path: Path) -> None:
    model = make_tiny_bert(tmp_path / "bert")
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    assert with_engine(job(model__name=str(model)))[0].engine.kind == "vllm"
    dummy = job(model__name=str(model), engine__options={"load_format": "dummy"})
    assert with_engine(dummy)[0].engine.kind == "torch"


@pytest.mark.usefixtures("gpu")
def test_a_layer_after_the_pooling_is_for_vllm(tmp_path: Path) -> None:
    model = make_tiny_bert(tmp_path / "bert")
    modules = json.loads((model / "modules.json").read_text())
    (model / "2_Dense").mkdir()
    (model / "2_Dense/config.json").write_text('{"out_features": 8}')
    modules.append({"idx": 3, "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (model / "modules.json").write_text(json.dumps(modules))
    chosen, why = with_engine(job(model__name=str(model)))
    assert chosen.engine.kind == "vllm"
    assert "Dense" in why


def options_for(folder: Path, model: Path) -> tuple[str, dict[str, Any]]:
    source = write_rows(folder / "x.jsonl", prompts(3))
    return str(source), {"model.name": str(model), "task": "embed", "prompt.column": "prompt"}


@pytest.mark.parametrize("kind", ["vllm", "torch"])
@pytest.mark.usefixtures("gpu")
def test_a_run_goes_on_with_the_engine_that_it_began_with(
    kind: str, tiny_bert: Path, tmp_path: Path
) -> None:
    run = small_run(
        tmp_path, prompts(3), task="embed", engine__kind=kind, model__name=str(tiny_bert)
    )
    source, options = options_for(tmp_path, tiny_bert)
    found, _ = job_and_dir(source, options, [], run.storage.root)
    assert found.engine.kind == kind
    named, _ = job_and_dir(source, {**options, "engine.kind": "fake"}, [], run.storage.root)
    assert named.engine.kind == "fake"
    assert job_alone(source, options, []).engine.kind == "torch"


@pytest.mark.usefixtures("gpu")
def test_a_dry_run_or_another_task_in_the_folder_chooses_nothing(
    tiny_bert: Path, tmp_path: Path
) -> None:
    source, options = options_for(tmp_path, tiny_bert)
    dry = small_run(tmp_path, prompts(3), task="embed", run_dir="dry")
    answers = small_run(tmp_path, prompts(3), engine__kind="vllm", run_dir="answers")
    for run in (dry, answers):
        found, _ = job_and_dir(source, options, [], run.storage.root)
        assert found.engine.kind == "torch"


@pytest.mark.usefixtures("gpu")
def test_the_choice_is_said_and_written_down(
    tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, options = options_for(tmp_path, tiny_bert)
    found, _ = job_and_dir(source, options, [], tmp_path / "run")
    assert "engine: torch, which runs small encoders (bert)" in capsys.readouterr().err
    manifest = survey(found)
    assert manifest.job["engine"]["kind"] == "torch"
    assert manifest.fingerprint["engine"] == {"kind": "torch"}


def test_on_ray_there_are_gpus_unless_none_is_wanted(tiny_bert: Path) -> None:
    ray = {"model__name": str(tiny_bert), "run__executor": "ray"}
    assert with_engine(job(**ray))[0].engine.kind == "torch"
    assert with_engine(job(**ray, run__ray__gpus_per_engine=0.5))[0].engine.kind == "torch"
    assert with_engine(job(**ray, run__ray__gpus_per_engine=0))[0].engine.kind == "vllm"


def test_a_stage_of_ray_data_chooses_too(tiny_bert: Path) -> None:
    stage = {"model": {"name": str(tiny_bert)}, "task": "embed", "prompt": {"column": "text"}}
    assert stream_job(stage).engine.kind == "torch"
    wide = {**stage, "engine": {"options": {"tensor_parallel_size": 1}}}
    assert stream_job(wide).engine.kind == "vllm"
    on_cpus = {**stage, "run": {"ray": {"gpus_per_engine": 0}}}
    assert stream_job(on_cpus).engine.kind == "vllm"


def test_nothing_is_surveyed_without_an_engine() -> None:
    with pytest.raises(AssertionError, match="chosen where the job is made"):
        survey(job())
