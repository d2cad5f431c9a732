from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from batchwright.config.job import Job
from batchwright.config.load import make_job
from batchwright.core.errors import JobError
from batchwright.executors.local import LocalExecutor
from batchwright.executors.ray_cluster import SUBMITTED, job_environment
from batchwright.executors.ray_metrics import readings
from batchwright.executors.ray_workers import RayExecutor, engine_resources, resource_options
from batchwright.running.staffing import Wanted, make_executor, stall_limits, wanted_of_ray
from tests.unit.rundir.small_runs import prompts, small_run


def wanted(tmp_path: Path, **settings: Any) -> Wanted:
    run = small_run(tmp_path, prompts(3), run_dir=f"run-{len(list(tmp_path.iterdir()))}")
    overrides = {key.replace("__", "."): value for key, value in settings.items()}
    data = run.job.model_dump(mode="json")
    return wanted_of_ray(run.manifest, make_job(data, overrides))


def vllm(**settings: Any) -> dict[str, Any]:
    return {"engine__kind": "vllm", "model__name": "m", **settings}


def test_all_replicas_are_needed_unless_fewer_are_enough(tmp_path: Path) -> None:
    assert wanted(tmp_path, run__replicas=4) == Wanted(4, 4, 0.0, False, 1)
    fewer = wanted(tmp_path, run__replicas=4, run__ray__min_replicas=0)
    assert (fewer.engines, fewer.least_engines) == (4, 0)


def test_more_at_least_than_at_most_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="min_replicas is 3, but there will be 2"):
        wanted(tmp_path, run__replicas=2, run__ray__min_replicas=3)


def test_an_engine_takes_the_cards_that_it_spans(tmp_path: Path) -> None:
    spans = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    assert wanted(tmp_path, **vllm(engine__options=spans)).gpus == 4
    assert wanted(tmp_path, **vllm(run__ray__gpus_per_engine=0.5)).gpus == 0.5


def test_engines_that_share_a_card_take_a_part_of_it_each(tmp_path: Path) -> None:
    shared = wanted(tmp_path, **vllm(run__engines_per_gpu=4, run__replicas=2))
    assert (shared.engines, shared.gpus) == (8, 0.25)


def test_cards_that_belong_together_are_not_shared(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="spans 2 GPUs"):
        wanted(
            tmp_path, **vllm(run__engines_per_gpu=2, engine__options={"tensor_parallel_size": 2})
        )


def test_an_engine_without_a_model_takes_no_card(tmp_path: Path) -> None:
    assert not wanted(tmp_path, engine__kind="fake").needs_cards


def job(**settings: Any) -> Job:
    overrides = {key.replace("__", "."): value for key, value in settings.items()}
    return make_job({"input": {"path": "x"}, "engine": {"kind": "fake"}}, overrides)


def test_resources_become_options_of_an_actor() -> None:
    cluster = job(run__ray__accelerator="H100", run__ray__engine_resources={"spot": 1}).run.ray
    each = engine_resources(cluster, 2)
    assert each == {"GPU": 2, "CPU": 1, "accelerator_type:H100": 0.001, "spot": 1}
    assert resource_options(each) == {
        "num_cpus": 1, "num_gpus": 2, "resources": {"accelerator_type:H100": 0.001, "spot": 1}
    }  # fmt: skip
    assert "GPU" not in engine_resources(job().run.ray, 0)


def test_the_nodes_get_this_batchwright_unless_the_environment_brings_code() -> None:
    (folder,) = (job_environment(job().run.ray, {}) or {})["py_modules"]
    assert Path(folder, "pipeline.py").is_file()
    own = job(run__ray__runtime_env={"pip": ["batchwright"]}).run.ray
    assert job_environment(own, {}) == {"pip": ["batchwright"]}
    variables = job(run__ray__runtime_env={"env_vars": {"A": "b"}}).run.ray
    assert set(job_environment(variables, {}) or {}) == {"py_modules", "env_vars"}


def test_the_environment_of_a_submitted_job_is_left_alone() -> None:
    assert job_environment(job().run.ray, {SUBMITTED: "{}"}) is None


def test_the_executor_is_the_one_that_the_job_names(tmp_path: Path) -> None:
    run = small_run(tmp_path, prompts(3))
    assert isinstance(make_executor(run.storage, run.manifest, run.job), LocalExecutor)
    ray = make_job(run.job.model_dump(mode="json"), {"run.executor": "ray", "run.replicas": 3})
    executor = make_executor(run.storage, run.manifest, ray)
    assert isinstance(executor, RayExecutor)
    assert executor.max_restarts == 20, "a node that goes takes all its workers along"
    assert executor.running == []
    executor.cancel(0)  # nothing was started: Ray is not even imported


def test_the_driver_is_more_patient_than_the_workers_own_watchdogs() -> None:
    limits = stall_limits(job(engine__hang_timeout_s=10, engine__start_timeout_s=100))
    assert limits.stuck_s > 10 + 3 * 100
    assert limits.silent_s > 3 * 60
    endpoint = job().model_copy(update={"engine": job(engine__kind="openai").engine})
    assert stall_limits(endpoint).stuck_s == math.inf


def test_only_counters_become_metrics() -> None:
    found = readings({"rows": 7, "uncommitted": 2, "phase": "running", "engine": {"pid": 1}})
    assert found == {"rows": 7.0, "uncommitted": 2.0}
