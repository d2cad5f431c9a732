"""How a run gets to a Ray cluster: connect, look at its nodes, and what it may be asked for."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import batchwright
from batchwright.config.cluster import RayCluster
from batchwright.core.errors import EngineError, JobError, MissingExtra
from batchwright.executors.room import Node
from batchwright.machine.hardware import LocalGpus, local_gpus, usable_cores

# Set by Ray in the driver of a submitted job, with the job's own runtime environment in it.
SUBMITTED = "RAY_JOB_CONFIG_JSON_ENV_VAR"

# A runtime environment with one of these says itself where the code comes from.
_BRINGS_CODE = ("py_modules", "working_dir", "pip", "uv", "conda", "container", "image_uri")

# Nothing of a run goes through the object store of a Ray that is started for it.
_OWN_OBJECT_STORE_BYTES = 128 << 20

_ASK_NODE_TIMEOUT_S = 120.0
_KNOCK_TIMEOUT_S = 10.0
# Ray gives itself 30 s to start, too few where many processes start on a few busy cores.
_START_ATTEMPTS = 3

INSTALL = "pip install 'batchwright[ray]'"


def import_ray() -> Any:
    """The ray module. Raises MissingExtra."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(f"run.executor: ray needs Ray ({error})", INSTALL) from None
    return ray


def connect(cluster: RayCluster, least_cpus: float = 1) -> Any:
    """The ray module, connected to the cluster of the job; a second call does nothing.

    Args:
        cluster: where it is.
        least_cpus: CPUs of a Ray that has to be started here, if this machine has fewer: its engines
            wait for cards or share the cores, and must not wait for each other's places.

    Raises:
        JobError: there is no cluster at the address.
    """
    ray = import_ray()
    if ray.is_initialized():
        return ray
    address = cluster.address or os.environ.get("RAY_ADDRESS")
    if address and address.startswith(("http://", "https://")):
        raise JobError(
            f"the Ray address {address} is that of a dashboard, to which only jobs are submitted",
            "Run `ray job submit --address URL -- batchwright run job.yaml`, or give host:6379.",
        )
    known = address or _address_left_here(os.environ)
    try:
        if known is not None:
            _knock(known)
        _keep_signals(lambda: _init(ray, cluster, address or "auto"))
    except (OSError, ValueError, RuntimeError) as error:
        if address:
            raise JobError(
                f"no Ray cluster answers at {address}: {_first_line(error)}",
                "Look at run.ray.address and RAY_ADDRESS; `ray status` shows whether it is up. A "
                "cluster that wants a token wants RAY_AUTH_MODE=token here too.",
            ) from error
        cpus = max(usable_cores(), int(least_cpus + 0.999))
        _keep_signals(lambda: start_here(cluster, cpus))
    return ray


def _address_left_here(environ: Mapping[str, str]) -> str | None:
    """The cluster that Ray last started on this machine: what it takes for `auto`."""
    note = Path(environ.get("RAY_TMPDIR") or "/tmp", "ray", "ray_current_cluster")  # noqa: S108
    try:
        return note.read_text().strip() or None
    except OSError:
        return None


def _knock(address: str) -> None:
    """Raise OSError if nobody listens at `host:port`: Ray itself tries for a quarter of an hour.

    The note of a Ray that was killed stays on its machine, and would be tried too.
    """
    place = urlsplit(address if "://" in address else f"//{address}")
    if place.hostname is None or place.port is None:
        return  # Ray says better what is wrong with it
    socket.create_connection((place.hostname, place.port), timeout=_KNOCK_TIMEOUT_S).close()


def _init(ray: Any, cluster: RayCluster, address: str) -> None:
    ray.init(
        address=address,
        namespace="batchwright",
        runtime_env=job_environment(cluster, os.environ),
        log_to_driver=False,
        logging_level="ERROR",
    )


def start_here(cluster: RayCluster, cpus: int) -> Any:
    """The ray module, with a cluster of this process's own. Raises EngineError."""
    ray = import_ray()
    for attempt in range(1, _START_ATTEMPTS + 1):
        try:
            ray.init(
                address="local",
                namespace="batchwright",
                num_cpus=cpus,
                object_store_memory=_OWN_OBJECT_STORE_BYTES,
                runtime_env=cluster.runtime_env or None,
                log_to_driver=False,
                logging_level="ERROR",
            )
        except Exception as error:  # Ray's errors have no common base here
            ray.shutdown()
            if attempt == _START_ATTEMPTS:
                raise EngineError(
                    f"Ray cannot be started on this machine: {_first_line(error)}",
                    "Its logs are in /tmp/ray/session_latest/logs; run.executor: local does without.",
                ) from error
        else:
            break
    return ray


def job_environment(cluster: RayCluster, environ: Mapping[str, str]) -> dict[str, Any] | None:
    """The runtime environment to connect with: the user's, and this batchwright if it names no code.

    A submitted job has its own, which must not be overridden.
    """
    given = cluster.runtime_env
    if SUBMITTED in environ:
        return None
    if any(name in given for name in _BRINGS_CODE):
        return dict(given)
    return {"py_modules": [str(Path(batchwright.__file__).parent)], **given}


def _keep_signals(connecting: Callable[[], None]) -> None:
    """Ray sets a handler for SIGTERM that ends the process at once; the one before is put back."""
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if in_main else None
    try:
        connecting()
    finally:
        if in_main and before is not None:
            signal.signal(signal.SIGTERM, before)


def living_nodes(ray: Any) -> list[Node]:
    """The nodes that are up, with all that they have, in use or not."""
    return [
        Node(node["NodeManagerAddress"], dict(node["Resources"]))
        for node in ray.nodes()
        if node["Alive"]
    ]


def draining_nodes(ray: Any) -> frozenset[str]:
    """Ids of the nodes that will be taken away soon, as far as Ray was given notice."""
    # Ray's own libraries ask for it there; no public call tells it, so a later Ray may not have it.
    ask = getattr(ray._private.state.state, "get_draining_nodes", dict)
    return frozenset(ask())


def node_here() -> str:
    """The id of the node that this actor runs on."""
    node: str = import_ray().get_runtime_context().get_node_id()
    return node


def free_resources(ray: Any) -> dict[str, float]:
    """What nobody uses now."""
    free: dict[str, float] = ray.available_resources()
    return free


def cluster_cards(cluster: RayCluster, least_cpus: float = 1) -> tuple[LocalGpus, int, int] | None:
    """The cards of one node, the cores of its host, and how many such nodes there are.

    One node with cards is asked what they are; it stands for those that have as many of its kind.
    None if no node has a card (yet).
    """
    ray = connect(cluster, least_cpus)
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU", 0) >= 1]
    if cluster.accelerator is not None:
        wanted = f"accelerator_type:{cluster.accelerator}"
        nodes = [node for node in nodes if wanted in node["Resources"]]
    if not nodes:
        return None
    first = max(nodes, key=lambda node: float(node["Resources"]["GPU"]))
    alike = sum(_kind(node) == _kind(first) for node in nodes)
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        first["NodeID"], soft=False
    )
    ask = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=affinity)(_look_at_cards)
    try:
        cards, cores = ray.get(ask.remote(), timeout=_ASK_NODE_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        raise EngineError(
            f"node {first['NodeManagerAddress']} of the Ray cluster does not say which cards it "
            f"has: {_first_line(error)}",
            "Name them (hardware.gpu, hardware.count: of one node), or look at `ray status`.",
        ) from error
    return None if cards is None else (cards, cores, alike)


def _kind(node: Mapping[str, Any]) -> tuple[float, list[str]]:
    resources = node["Resources"]
    kinds = sorted(name for name in resources if name.startswith("accelerator_type:"))
    return float(resources["GPU"]), kinds


def _look_at_cards() -> tuple[LocalGpus | None, int]:
    """Runs on a node of the cluster."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # a task without cards may be shown none
    return local_gpus(), usable_cores()


def versions() -> dict[str, str]:
    """What must be alike on the driver and on the nodes."""
    return {"batchwright": batchwright.__version__, "ray": importlib.metadata.version("ray")}


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
