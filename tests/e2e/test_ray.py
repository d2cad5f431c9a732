"""The same job on a real Ray of this machine: nothing missing, nothing twice, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from batchwright import pipeline
from batchwright.config.cluster import RayCluster
from batchwright.config.job import Job
from batchwright.config.load import make_job
from batchwright.core.errors import EngineError, JobError, Stopped
from batchwright.executors.ray_cluster import start_here
from batchwright.ray import processor
from batchwright.rundir.storage import Storage
from tests.support.ray_nodes import wait_until, write_rows

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS = 600


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Ray of this process's own, with more places than cores: nothing computes much here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        ray = start_here(RayCluster(), cpus=4)
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("data") / "rows.jsonl", ROWS)


def job_on_ray(path: Path, **settings: Any) -> Job:
    overrides = {key.replace("__", "."): value for key, value in settings.items()}
    usual = {"run.executor": "ray", "run.replicas": 2, "run.pilot_rows": 0, "run.order": "file",
             "run.chunk_rows": 20, "run.lease_s": 2, "run.max_failed": 1.0}  # fmt: skip
    data = {"input": {"path": str(path)}, "engine": {"kind": "fake"}}
    return make_job(data, {**usual, **overrides})


def slow(**settings: Any) -> dict[str, Any]:
    """Longer work than another engine needs to start, in steps that a kill can come between."""
    return {"engine__options": {"seconds_per_step": 0.8, "rows_per_step": 8, "max_num_seqs": 16},
            **settings}  # fmt: skip


def results(run_dir: Path) -> dict[int, tuple[Any, ...]]:
    table = pq.ParquetDataset(run_dir / "results").read(columns=["row", "id", "status", "text"])
    return {row["row"]: tuple(row.values()) for row in table.to_pylist()}


def workers(run_dir: Path) -> list[dict[str, Any]]:
    storage = Storage(run_dir)
    found = [json.loads(storage.read(f"workers/{name}")) for name in storage.names("workers")]
    engines = [one for one in found if one.get("role") == "infer" and not one.get("ended")]
    return [one for one in engines if one.get("phase") == "running"]


def check(run_dir: Path, local: dict[int, tuple[Any, ...]]) -> None:
    assert pipeline.verify(run_dir).passed
    assert results(run_dir) == local


@pytest.fixture(scope="module")
def local(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Any, ...]]:
    """The results of the local executor."""
    run_dir = tmp_path_factory.mktemp("local") / "run"
    job = job_on_ray(rows, run__executor="local", run__replicas=1)
    pipeline.run(job, run_dir, lambda _: None, threading.Event())
    return results(run_dir)


def test_an_actor_and_an_engine_and_a_stop_lose_nothing(
    ray: Any, rows: Path, local: dict[int, tuple[Any, ...]], tmp_path: Path
) -> None:
    run_dir, stop = tmp_path / "run", threading.Event()
    job = job_on_ray(rows, **slow())
    ends: list[Any] = []

    def first_start() -> None:
        try:
            ends.append(pipeline.run(job, run_dir, lambda _: None, stop))
        except Stopped as error:
            ends.append(error)

    running = threading.Thread(target=first_start)
    running.start()
    try:
        actor, *others = wait_until(
            lambda: len(found := workers(run_dir)) == 2 and found, "two engines run"
        )
        os.kill(actor["pid"], signal.SIGKILL)
        os.kill(others[0]["engine"]["pid"], signal.SIGKILL)
        pids = {one["pid"] for one in (actor, *others)}
        wait_until(lambda: {one["pid"] for one in workers(run_dir)} - pids, "another engine runs")
    finally:
        stop.set()
        running.join()
    assert isinstance(ends[0], Stopped)
    receipts = {path: path.read_bytes() for path in (run_dir / "receipts").iterdir()}
    events = [json.loads(line)["event"] for line in (run_dir / "events.jsonl").open()]
    assert "worker_died" in events
    assert "engine_restarted" in events
    fast = job_on_ray(rows)
    summary = pipeline.run(fast, run_dir, lambda _: None, threading.Event())
    assert (summary.counts.ok, summary.counts.rejected) == (ROWS - 6, 6)
    assert all(path.read_bytes() == data for path, data in receipts.items()), "done is done"
    check(run_dir, local)


def test_a_cluster_that_is_too_small_is_refused_at_once(
    ray: Any, rows: Path, tmp_path: Path
) -> None:
    job = job_on_ray(rows, run__replicas=3, run__ray__cpus_per_engine=2)
    with pytest.raises(JobError) as refused:
        pipeline.run(job, tmp_path / "run", lambda _: None, threading.Event())
    said = str(refused.value)
    assert "3 engines with 2 CPU each were asked for, and there is room for 2" in said
    assert "0 GPU, 4 CPU" in said
    assert "run.replicas" in said


def test_engines_that_find_no_place_end_the_run_in_time(
    ray: Any, rows: Path, tmp_path: Path
) -> None:
    class Neighbour:
        def here(self) -> bool:
            return True

    neighbour = ray.remote(Neighbour).options(num_cpus=3).remote()
    ray.get(neighbour.here.remote())
    job = job_on_ray(rows, run__replicas=2, run__ray__cpus_per_engine=1.5,
                     run__ray__place_timeout_s=1)  # fmt: skip
    with pytest.raises(EngineError, match="only 0 of 2 engines have a place on the Ray cluster"):
        pipeline.run(job, tmp_path / "run", lambda _: None, threading.Event())
    ray.kill(neighbour)


def test_fewer_engines_are_enough_if_the_job_says_so(
    ray: Any, rows: Path, local: dict[int, tuple[Any, ...]], tmp_path: Path
) -> None:
    """Of fifty engines as many run as there is room for, and those without a place hold nobody up."""
    run_dir = tmp_path / "run"
    job = job_on_ray(rows, run__replicas=50, run__ray__min_replicas=1)
    pipeline.run(job, run_dir, lambda _: None, threading.Event())
    check(run_dir, local)


def test_a_dataset_goes_through_with_its_bad_rows(ray: Any) -> None:
    killer = 130
    prompts = ["" if n % 50 == 7 else f"row {n}" for n in range(200)]
    items = [{"key": n, "prompt": prompt} for n, prompt in enumerate(prompts)]
    stage = processor(
        {
            "engine": {"kind": "fake", "options": {"kill_rows": [killer]}},
            "sampling": {"max_tokens": 8},
        },
        concurrency=1,
        preprocess=lambda row: {**row, "seen": True},
        postprocess=lambda row: {name: row[name] for name in ("key", "seen", "status", "text")},
    )
    found = stage(ray.data.from_items(items, override_num_blocks=2)).take_all()
    assert sorted(row["key"] for row in found) == list(range(200))
    assert Counter(row["status"] for row in found) == {"ok": 195, "rejected": 4, "failed": 1}
    assert all(row["seen"] for row in found)
    assert all(row["text"] for row in found if row["status"] == "ok")


def test_a_stage_without_room_is_refused_before_it_runs(ray: Any) -> None:
    stage = processor({"engine": {"kind": "fake"}}, concurrency=9)
    with pytest.raises(JobError, match="9 engines with 1 CPU each were asked for"):
        stage(ray.data.range(3))
