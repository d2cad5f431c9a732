"""The section `run.ray` of the job file: which cluster, and what each process gets of it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from batchwright.config.sections import Section

Amount = Annotated[float, Field(gt=0)]


class RayCluster(Section):
    """The Ray cluster of `executor: ray`, and what each process of the run gets of it."""

    address: str | None = None
    """Where the cluster is: `host:6379`. Unset: `RAY_ADDRESS`, else a cluster that runs on this
    machine, else one that is started here for the run."""
    min_replicas: Annotated[int | None, Field(ge=0)] = None
    """The run begins with so many engines and takes up to `run.replicas` as there is room: others
    leave, or an autoscaler adds nodes. A cluster without room for so many is refused. Unset: all of
    `run.replicas`; 0 waits for an autoscaler that starts from nothing."""
    gpus_per_engine: Annotated[float | None, Field(ge=0)] = None
    """GPUs of one engine, all on one node. Unset: tensor x pipeline parallel, divided by
    `run.engines_per_gpu`; none for engines that need no card. 0 for vLLM on CPUs."""
    cpus_per_engine: Annotated[float, Field(ge=0)] = 1
    """CPUs of one engine, as Ray counts them."""
    cpus_per_prepare: Annotated[float, Field(ge=0)] = 1
    """CPUs of one of `run.prepare_processes`, which go to nodes without GPUs if there are any."""
    accelerator: str | None = None
    """Kind of card that the engines must get, by Ray's name for it (`H100`, `A100-80G`, `L4`)."""
    engine_resources: dict[str, Amount] = Field(default={})
    """Custom resources of one engine, as the nodes were started with."""
    runtime_env: dict[str, Any] = Field(default={})
    """Ray's runtime environment (`pip`, `env_vars`, `image_uri`, …). It is stored with the run: keep
    secrets out of it. Unset, the nodes get this very batchwright as a module."""
    place_timeout_s: Amount = 900
    """The run ends if the first `min_replicas` engines have no place by then, and also if later no
    engine, or no process that still has to prepare rows, has had one for so long: all nodes are gone."""
