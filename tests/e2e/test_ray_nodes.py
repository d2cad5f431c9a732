"""A Ray cluster of several nodes: they come, are announced to go, vanish; and object stores are full."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from batchwright import pipeline
from batchwright.config.cluster import RayCluster
from batchwright.config.job import Job
from batchwright.config.load import make_job
from batchwright.core.errors import Stopped
from batchwright.executors.ray_cluster import connect
from batchwright.ray import processor
from batchwright.rundir.storage import Storage
from batchwright.running.drive import Progress
from tests.support.ray_nodes import RayNodes, wait_until, write_rows

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

ROWS = 2000


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    """A head without room for workers, and two nodes with room for one engine each."""
    nodes = RayNodes()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in nodes.environ.items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        try:
            nodes.start_head()
            nodes.add("first", cpus=2)
            nodes.add("second", cpus=2)
            ray = connect(RayCluster(address=nodes.address))
            yield nodes
            ray.shutdown()
        finally:
            nodes.close()


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("data") / "rows.jsonl", ROWS)


def job_on(nodes: RayNodes, path: Path, **settings: Any) -> Job:
    usual = {"run.executor": "ray", "run.replicas": 2, "run.pilot_rows": 0, "run.order": "file",
             "run.chunk_rows": 20, "run.max_failed": 1.0, "run.ray.address": nodes.address,
             "run.ray.min_replicas": 1, "run.ray.cpus_per_engine": 1.5,
             "run.ray.cpus_per_prepare": 0.5}  # fmt: skip
    data = {"input": {"path": str(path)}, "engine": {"kind": "fake"}}
    return make_job(data, {**usual, **settings})


def results(run_dir: Path) -> dict[int, tuple[Any, ...]]:
    table = pq.ParquetDataset(run_dir / "results").read(columns=["row", "id", "status", "text"])
    return {row["row"]: tuple(row.values()) for row in table.to_pylist()}


@pytest.fixture(scope="module")
def local(
    nodes: RayNodes, rows: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, tuple[Any, ...]]:
    """The results of the local executor."""
    run_dir = tmp_path_factory.mktemp("local") / "run"
    job = job_on(nodes, rows, **{"run.executor": "local", "run.replicas": 1})
    pipeline.run(job, run_dir, lambda _: None, threading.Event())
    return results(run_dir)


class Running:
    """A run in a thread, with what it shows."""

    def __init__(self, job: Job, run_dir: Path) -> None:
        self._job = job
        self._run_dir = run_dir
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.phase = ""
        self.end: object = None

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self.end = pipeline.run(self._job, self._run_dir, self._watch, self._stop)
        except Stopped as error:
            self.end = error

    def _watch(self, progress: Progress) -> None:
        self.phase = progress.phase

    def receipts_by(self, pids: set[int]) -> set[str]:
        """Receipts of the workers with these processes."""
        workers = {name.removesuffix(".json") for name, one in self._each("workers")
                   if one["pid"] in pids}  # fmt: skip
        return {name for name, one in self._each("receipts") if one["worker"] in workers}

    def receipts(self) -> dict[str, bytes]:
        storage = Storage(self._run_dir)
        return {name: storage.read(f"receipts/{name}") for name in storage.names("receipts")}

    def claims(self) -> set[str]:
        return set(Storage(self._run_dir).names("claims"))

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (self._run_dir / "events.jsonl").open()]
        return [line for line in lines if line["event"] == event]

    def _each(self, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
        storage = Storage(self._run_dir)
        for name in storage.names(folder):
            yield name, json.loads(storage.read(f"{folder}/{name}"))


def test_full_object_stores_hold_nobody_up(
    nodes: RayNodes, rows: Path, local: dict[int, tuple[Any, ...]], tmp_path: Path
) -> None:
    """Nothing of a run is in them; a stage of Ray Data ends with Ray's own error, and does not hang."""
    import ray

    class Hoarder:
        def __init__(self) -> None:
            self._held: list[Any] = []

        def fill(self) -> str:
            for piece in (4 << 20, 1 << 20, 1 << 17):
                try:
                    while True:
                        self._held.append(ray.put(bytes(piece)))
                except ray.exceptions.RayError as error:
                    said = type(error).__name__
            return said

    hoarders = [
        ray.remote(Hoarder).options(num_cpus=0, resources={name: 1}).remote()
        for name in ("first", "second")
    ]
    try:
        told = ray.get([one.fill.remote() for one in hoarders], timeout=120)
        assert told == ["OutOfDiskError"] * 2
        pipeline.run(job_on(nodes, rows), tmp_path / "run", lambda _: None, threading.Event())
        assert pipeline.verify(tmp_path / "run").passed
        assert results(tmp_path / "run") == local
        stage = processor(
            {"engine": {"kind": "fake"}, "run": {"ray": {"address": nodes.address}}},
            concurrency=1,
            preprocess=lambda row: {"prompt": f"row {row['id']}", "rest": "x" * 100_000},
        )
        with pytest.raises(ray.exceptions.RayError, match="object store is full"):
            stage(ray.data.range(100, override_num_blocks=1)).materialize()
    finally:
        for one in hoarders:
            ray.kill(one)


def test_nodes_come_and_go_and_no_row_is_lost_or_run_twice(
    nodes: RayNodes, rows: Path, local: dict[int, tuple[Any, ...]], tmp_path: Path
) -> None:
    import ray

    slow = {"seconds_per_step": 0.2, "rows_per_step": 4, "max_num_seqs": 8}
    run_dir = tmp_path / "run"
    kept: dict[str, bytes] = {}
    with Running(job_on(nodes, rows, **{"engine.options": slow}), run_dir) as run:

        def done_by(name: str) -> None:
            before = run.receipts_by(nodes.pids(name))
            wait_until(
                lambda: run.receipts_by(nodes.pids(name)) - before, f"{name} finishes a chunk"
            )
            kept.update(run.receipts())

        done_by("first")
        done_by("second")

        first = next(one["NodeID"] for one in ray.nodes() if "first" in one["Resources"])
        nodes.announce_end(first)
        wait_until(lambda: run.events("worker_left"), "the worker of the first node leaves")
        assert not run.events("worker_died")
        nodes.kill("first")
        nodes.add("third", cpus=2)
        done_by("third")  # by the engine that waited for a place

        nodes.kill("second")
        wait_until(lambda: run.events("worker_died"), "the death of the second node is seen")
        done_by("third")

        nodes.kill("third")
        wanted = "waiting for a place on Ray (2 of 2 workers; an engine takes 1.5 CPU; free now"
        wait_until(lambda: run.phase.startswith(wanted), "the run says what it waits for")
        nodes.add("fourth", cpus=2)
        done_by("fourth")
        claims = run.claims()
    assert isinstance(run.end, Stopped)
    pipeline.run(job_on(nodes, rows), run_dir, lambda _: None, threading.Event())
    after = run.receipts()
    assert {name: after[name] for name in kept} == kept
    chunks = {name.partition(".")[0] for name, data in kept.items() if json.loads(data)["last"]}
    assert chunks
    assert chunks <= {name.rpartition(".")[0] for name in claims}
    again = {name.rpartition(".")[0] for name in run.claims() - claims}
    assert not chunks & again, "a finished chunk was claimed again"
    assert pipeline.verify(run_dir).passed
    assert results(run_dir) == local
