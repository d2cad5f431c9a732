from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from batchwright.config.job import Job
from batchwright.config.load import make_job
from batchwright.core.errors import JobError
from batchwright.core.workload import LengthHistogram
from batchwright.equip.equipment import (
    engine_settings,
    gpus_per_replica,
    job_tokenizer,
    num_replicas,
)
from batchwright.foresight.planning import Cards
from batchwright.foresight.settle import open_settled, outputs_of_pilot, replan, settle
from batchwright.foresight.survey import survey
from batchwright.plan.gpus import find_gpu
from batchwright.rundir import layout
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.storage import Storage

H200 = Cards(find_gpu("H200"), 1, linked=False, cores=16)
GO = threading.Event()


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": "word " * n}) + "\n" for n in range(1, 200)))
    return path


def job_for(rows: Path, model: Path, **overrides: object) -> Job:
    data = {
        "input": {"path": str(rows)},
        "model": {"name": str(model)},
        "engine": {"kind": "vllm"},
    }
    return make_job(data, {"sampling.max_tokens": 100, **overrides})


def settled(job: Job, folder: Path, cards: Cards | None = H200) -> Manifest:
    manifest, _ = settle(survey(job), job, cards, Storage(folder), GO)
    return manifest


def test_without_a_card_nothing_is_planned(rows: Path, tiny_model: Path, tmp_path: Path) -> None:
    job = job_for(rows, tiny_model)
    manifest = settled(job, tmp_path / "run", None)
    assert manifest.planned == {}
    assert manifest == replace(
        survey(job), kv_tokens=manifest.kv_tokens, block_size=manifest.block_size
    )


def test_the_cache_of_an_engine_on_a_cpu_is_known_beforehand(
    rows: Path, tiny_model: Path, tmp_path: Path
) -> None:
    job = job_for(rows, tiny_model, **{"engine.options.kv_cache_memory_bytes": 64 << 20})
    config = json.loads((tiny_model / "config.json").read_text())
    size = config["hidden_size"] // config["num_attention_heads"]
    each = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * size * 2  # bfloat16
    manifest = settled(job, tmp_path / "run", None)
    assert (manifest.kv_tokens, manifest.block_size) == ((64 << 20) // each, 128)
    fake = job_for(rows, tiny_model, **{"engine.kind": "fake", "engine.options.kv_tokens": 77})
    assert settled(fake, tmp_path / "fake", None).kv_tokens == 77


def test_the_engine_gets_the_plan_and_the_jobs_own_options_win(
    rows: Path, tiny_model: Path, tmp_path: Path
) -> None:
    job = job_for(rows, tiny_model, **{"engine.options.max_num_seqs": 48})
    manifest = settled(job, tmp_path / "run")
    settings = engine_settings(manifest, job, job_tokenizer(job))
    assert settings.max_num_seqs == 48
    assert settings.options["max_num_batched_tokens"] == 16_384
    assert settings.max_model_len == manifest.max_model_len
    assert "max_model_len" not in manifest.planned
    assert (num_replicas(manifest, job), gpus_per_replica(manifest, job)) == (1, 1)
    other = job_for(rows, tiny_model, **{"engine.options.max_num_batched_tokens": 4096})
    settings = engine_settings(settled(other, tmp_path / "b"), other, job_tokenizer(other))
    assert settings.options["max_num_batched_tokens"] == 4096


def test_two_cards_give_two_replicas_unless_told_otherwise(
    rows: Path, tiny_model: Path, tmp_path: Path
) -> None:
    two = replace(H200, count=2)
    job = job_for(rows, tiny_model)
    assert num_replicas(settled(job, tmp_path / "a", two), job) == 2
    job = job_for(rows, tiny_model, **{"run.replicas": 1})
    assert num_replicas(settled(job, tmp_path / "b", two), job) == 1


def test_a_row_may_use_the_models_context_where_it_fits(
    rows: Path, tiny_model: Path, tmp_path: Path
) -> None:
    config = json.loads((tiny_model / "config.json").read_text())
    job = job_for(rows, tiny_model)
    assert settled(job, tmp_path / "a").max_model_len == config["max_position_embeddings"]
    asked = job_for(rows, tiny_model, **{"engine.options.max_model_len": 512})
    assert settled(asked, tmp_path / "b").max_model_len == 512


def test_a_plan_that_cannot_work_ends_the_run_before_it_starts(
    rows: Path, tiny_model: Path, tmp_path: Path
) -> None:
    job = job_for(rows, tiny_model, **{"engine.options.kv_cache_memory_bytes": 1000})
    with pytest.raises(JobError, match="does not hold one row"):
        settled(job, tmp_path / "run")


def test_what_a_pilot_measured_is_planned_with(
    rows: Path, tiny_model: Path, tmp_path: Path
) -> None:
    job = job_for(
        rows, tiny_model,
        **{"sampling.max_tokens": 3000, "engine.options.kv_cache_memory_bytes": 16 << 20},
    )  # fmt: skip
    opened = open_settled(tmp_path / "run", survey(job), job, H200, GO)
    assert opened.plan is not None
    assert replan(opened, job, H200, GO) == (), "nothing is known yet"
    measured = {"outputs": {"lengths": [5], "counts": [100]}}
    opened.storage.put(layout.PILOT, orjson.dumps(measured))
    changes = replan(opened, job, H200, GO)
    assert any(line.startswith("max_num_seqs") for line in changes)
    after = orjson.loads(opened.storage.read(layout.PLAN))
    assert after["max_num_seqs"] > opened.plan.value("max_num_seqs")
    assert outputs_of_pilot(tmp_path / "run", survey(job)) == LengthHistogram((5,), (100,))
    other = job_for(rows, tiny_model, **{"sampling.max_tokens": 7})
    assert outputs_of_pilot(tmp_path / "run", survey(other)) is None, "the pilot of another job"


def test_several_engines_that_were_asked_for_divide_the_memory_of_a_card(
    rows: Path, tiny_model: Path, tmp_path: Path
) -> None:
    job = job_for(rows, tiny_model, **{"run.engines_per_gpu": 3, "run.replicas": 1})
    planned = settled(job, tmp_path / "a").planned
    assert planned["engines_per_gpu"] == 3
    assert planned["gpu_memory_utilization"] == pytest.approx(0.92 / 3, abs=1e-3)
    assert 3 * planned["kv_cache_memory_bytes"] < 0.92 * H200.gpu.memory_bytes
    own = job_for(
        rows, tiny_model,
        **{"run.engines_per_gpu": 3, "engine.options.gpu_memory_utilization": 0.3},
    )  # fmt: skip
    assert settled(own, tmp_path / "b").planned["gpu_memory_utilization"] == 0.3
