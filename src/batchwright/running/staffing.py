"""Who starts the workers of a run: which executor, and what it is asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from batchwright.config.job import Job
from batchwright.core.errors import JobError
from batchwright.engines.vllm_setup import is_cpu_build
from batchwright.equip.equipment import engines_per_gpu, gpus_per_replica, num_replicas
from batchwright.executors.local import Ended, LocalExecutor
from batchwright.executors.ray_workers import RayExecutor, Wanted
from batchwright.executors.stall import Limits
from batchwright.rundir import layout
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.storage import Storage

# Engines that may need a card; the others work for an endpoint, or not at all.
_ON_CARDS = ("vllm", "torch")

# A worker's own watchdogs come first: so long after them it is ended from outside.
_PATIENCE_S = 60.0
_SILENT_LEASES = 3


class Executor(Protocol):
    """Starts workers for a run directory, watches them and stops them."""

    @property
    def max_restarts(self) -> int:
        """So many deaths in a row without progress end the run."""

    @property
    def starting(self) -> str:
        """What is waited for while no worker works, in a few words."""

    @property
    def running(self) -> list[str]:
        """Roles of the workers that run."""

    def places(self, replicas: int, gpus_each: int) -> Sequence[str | None]:
        """A place for each replica: the cards that it will see, or None. Raises JobError."""

    def start(self, role: str, name: str, gpus: str | None = None) -> None:
        """Start one worker in one of the places."""

    def poll(self) -> list[Ended]:
        """The workers that have ended since the last call. Raises EngineError."""

    def stop(self, name: str) -> None:
        """Ask one worker to stop."""

    def kill(self, name: str) -> None:
        """End one worker at once; the next poll tells of it."""

    def cancel(self, grace_s: float) -> None:
        """Ask every worker to stop; after the grace time, make it."""


def make_executor(storage: Storage, manifest: Manifest, job: Job) -> Executor:
    """The executor that the job names. Raises JobError if its cluster is too small."""
    log_dir = storage.local_folder(layout.LOGS)
    if job.run.executor == "local":
        return LocalExecutor(storage.location, log_dir)
    return RayExecutor(storage.location, log_dir, job.run.ray, wanted_of_ray(manifest, job))


def wanted_of_ray(manifest: Manifest, job: Job) -> Wanted:
    """What a run asks of a Ray cluster.

    Raises:
        JobError: what the job asks for cannot be.
    """
    shared = job.run.engines_per_gpu or 1
    engines = num_replicas(manifest, job) * shared
    least = job.run.ray.min_replicas
    if least is not None and least > engines:
        raise JobError(
            f"run.ray.min_replicas is {least}, but there will be {engines} engines at most",
            "Raise run.replicas, or lower it.",
        )
    gpus, needs = gpus_of_engine(manifest, job)
    return Wanted(
        engines, engines if least is None else least, gpus, needs, job.run.prepare_processes
    )


def gpus_of_engine(manifest: Manifest, job: Job) -> tuple[float, bool]:
    """GPUs of one engine, and whether it cannot do without: not if vLLM's build here is for CPUs.

    Raises:
        JobError: Ray cannot share cards in the way that is asked for.
    """
    given = job.run.ray.gpus_per_engine
    if given is not None:
        return given, True
    if job.engine.kind not in _ON_CARDS:
        return 0.0, False
    each = gpus_per_replica(manifest, job)
    shared = job.run.engines_per_gpu or 1
    if each > 1 and shared > 1:
        raise JobError(
            f"run.engines_per_gpu is {shared}, and each engine spans {each} GPUs: Ray shares single "
            "cards only",
            "Remove run.engines_per_gpu, or set engine.options.tensor_parallel_size: 1.",
        )
    return each / shared, job.engine.kind == "vllm" and not is_cpu_build()


def most_engines_per_card(manifest: Manifest, job: Job) -> int:
    """Engines that may share a card: on Ray those that were asked for, each with its own place."""
    return engines_per_gpu(manifest, job) if job.run.executor == "local" else 1


def stall_limits(job: Job) -> Limits:
    """When the driver ends a worker that its own watchdogs have not ended."""
    engine = job.engine
    stuck_s = engine.hang_timeout_s + 3 * engine.start_timeout_s + _PATIENCE_S
    if job.engine.kind == "openai":  # what a provider allows per minute may keep rows for hours
        stuck_s = math.inf
    return Limits(_SILENT_LEASES * job.run.lease_s + _PATIENCE_S, stuck_s)
