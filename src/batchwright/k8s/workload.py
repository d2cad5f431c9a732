"""What is to run, decided before any manifest is built: pods, their size, their files."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from batchwright.config.job import Job
from batchwright.config.kubernetes import Kubernetes, Toleration
from batchwright.core.errors import JobError
from batchwright.k8s.quantity import gibibytes, parse_quantity, times

# Where pods see what the ConfigMap holds.
CONFIG_DIR = "/etc/batchwright"
JOB_FILE = f"{CONFIG_DIR}/job.yaml"

# For writing receipts and stopping the engine, after the rows in flight had their grace time.
STOP_S = 40

# Labels of nodes that matter to pods without cards, too.
_NOT_ABOUT_CARDS = {
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
}

# What nodes with cards are tainted with, whatever their cards are called as a resource (MIG).
_TAINT = "nvidia.com/gpu"

# Longest name that is made of a job's name, and of a Job, whose pods have letters of their own.
_NAME_LENGTH = 40
_JOB_NAME_LENGTH = 52

_DAY_S = 86_400
_MINUTE_S = 60


@dataclass(frozen=True, slots=True)
class PodShape:
    """What one pod asks for; limits are the same.

    Attributes:
        gpus: cards, or shares of cards.
        cpu: cores, as a quantity.
        memory: main memory, as a quantity; `/dev/shm` counts against it.
        shm: size of `/dev/shm`, as a quantity.
    """

    gpus: int
    cpu: str
    memory: str
    shm: str


@dataclass(frozen=True, slots=True)
class PodGroup:
    """Pods for one kind of node.

    Attributes:
        name: of the group; empty if it is the only one.
        replicas: pods; `least` to `most` if Ray may change that.
    """

    name: str
    replicas: int
    least: int
    most: int
    gpu_products: tuple[str, ...]
    node_selector: dict[str, str]
    tolerations: tuple[Toleration, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """All that the builders of manifests need to know.

    Attributes:
        name: of the objects.
        run_dir: where the run lives, as the pods see it.
        files: what the ConfigMap holds, by file name.
        grace_s: between SIGTERM and SIGKILL.
        ttl_s: how long the finished job stays.
        metrics_port: of the pods that know how far the run is; None for none.
    """

    name: str
    run_dir: str
    settings: Kubernetes
    shape: PodShape
    groups: tuple[PodGroup, ...]
    files: dict[str, str] = field(default_factory=dict)
    grace_s: int = 60
    ttl_s: int = _DAY_S
    metrics_port: int | None = None

    @property
    def anywhere(self) -> PodGroup:
        """Nodes for a pod that computes nothing: where it runs must not depend on cards.

        It still has to fit the image's processor, be near the data, and be let onto the nodes.
        """
        where = {
            key: value
            for key, value in self.settings.node_selector.items()
            if key in _NOT_ABOUT_CARDS
        }
        return PodGroup("", 1, 1, 1, (), where, tuple(self.settings.tolerations))

    @property
    def pods(self) -> int:
        """Pods that compute, in all groups."""
        return sum(group.replicas for group in self.groups)


def make_workload(
    job: Job,
    *,
    parallel: int,
    replicas: int | None,
    card_bytes: int | None,
    files: Mapping[str, str] | None = None,
) -> Workload:
    """Decide what runs.

    Args:
        job: checked by `reach.check_job` before.
        parallel: cards that one engine spans.
        replicas: engines that the plan has room for; None without a plan.
        card_bytes: memory of one card, if it is known.
        files: more files for the ConfigMap.

    Raises:
        JobError: something is neither given nor known.
    """
    settings = job.kubernetes
    shape = _shape(job, parallel, card_bytes)
    taints = tuple(dict.fromkeys((_TAINT, settings.gpu_resource))) if shape.gpus else ()
    # Nodes with cards are often kept free of pods that need none.
    tolerated = tuple(Toleration(key=key, operator="Exists", effect="NoSchedule") for key in taints)
    groups = _groups(settings, replicas or job.run.replicas, tolerated)
    in_pods = _job_in_pods(job, parallel, groups)
    text = yaml.safe_dump(in_pods, sort_keys=False, allow_unicode=True)
    ttl_s = _DAY_S if settings.mode == "job" else _MINUTE_S
    return Workload(
        name=object_name(job),
        run_dir=job.run.dir.replace("{name}", job.name),
        settings=settings,
        shape=shape,
        groups=groups,
        files={"job.yaml": text, **(files or {})},
        grace_s=math.ceil(job.run.grace_s) + STOP_S,
        ttl_s=ttl_s if settings.ttl_s is None else settings.ttl_s,
        metrics_port=job.run.metrics_port,
    )


def object_name(job: Job) -> str:
    """The name of the job's objects: given, or made of the job's name."""
    if job.kubernetes.name:
        return job.kubernetes.name
    name = re.sub(r"[^a-z0-9]+", "-", job.name.lower()).strip("-")
    if name and not name[0].isalpha():  # a Service and a RayJob must begin with a letter
        name = f"job-{name}"
    # A group's Job is called after both.
    group = max((len(one.name) + 1 for one in job.kubernetes.groups), default=0)
    most = min(_NAME_LENGTH, _JOB_NAME_LENGTH - group)
    if len(name) > most:
        # Cut alone, two long names would become one, and `delete` would remove the other's job.
        mark = hashlib.sha256(job.name.encode()).hexdigest()[:6]
        name = f"{name[: most - 7].rstrip('-')}-{mark}"
    if not name:
        raise JobError(
            f"kubernetes.name is missing: none can be made of the job's name {job.name!r}"
        )
    return name


def cards_per_pod(job: Job, parallel: int) -> int:
    """Cards that a pod asks for."""
    given = job.kubernetes.gpus
    if given is not None:
        return given
    return 0 if job.engine.kind in {"openai", "fake"} else parallel


def _shape(job: Job, parallel: int, card_bytes: int | None) -> PodShape:
    settings = job.kubernetes
    gpus = cards_per_pod(job, parallel)
    if gpus and gpus < parallel:
        raise JobError(
            f"kubernetes.gpus: a pod has {gpus} cards, but the engine spans {parallel} "
            "(engine.options.tensor_parallel_size times pipeline_parallel_size)"
        )
    if gpus > parallel and job.engine.kind != "fake":
        raise JobError(
            f"kubernetes.gpus: a pod has {gpus} cards and one engine, which spans {parallel}: the "
            "others would be paid for and idle",
            f"Set kubernetes.gpus: {parallel}, and more kubernetes.replicas.",
        )
    times_of = max(gpus, 1)
    memory = settings.memory_per_gpu or _twice_the_card(settings, gpus, card_bytes)
    shape = PodShape(
        gpus=gpus,
        cpu=times(settings.cpu_per_gpu, times_of),
        memory=times(memory, times_of),
        shm=settings.shm or (f"{2 * gpus}Gi" if gpus > 1 else "1Gi"),
    )
    room, shared = parse_quantity(shape.memory), parse_quantity(shape.shm)
    assert room is not None
    assert shared is not None
    if shared > room / 2:
        raise JobError(
            f"kubernetes.shm: {shape.shm} of shared memory is more than half of the pod's "
            f"{shape.memory}, and counts against it",
            "Lower kubernetes.shm, or raise kubernetes.memory_per_gpu.",
        )
    return shape


def _twice_the_card(settings: Kubernetes, gpus: int, card_bytes: int | None) -> str:
    if not gpus:
        return "16Gi"
    if settings.hami and settings.hami.memory_mb:
        return gibibytes(2 * settings.hami.memory_mb * (1 << 20))
    if card_bytes is None:
        raise JobError(
            "kubernetes.memory_per_gpu is missing, and the cards' memory is not known",
            "Name the kind of card (hardware.gpu: H100), or give the memory.",
        )
    share = settings.hami.memory_percent or 100 if settings.hami else 100
    return gibibytes(2 * card_bytes * share / 100)


def _groups(
    settings: Kubernetes, planned: int | None, tolerated: tuple[Toleration, ...]
) -> tuple[PodGroup, ...]:
    default = settings.replicas or planned
    if not settings.groups:
        return (
            _group(settings, "", _needed(default, "kubernetes.replicas"),
                   settings.min_replicas, settings.max_replicas, tolerated),
        )  # fmt: skip
    made = []
    for index, group in enumerate(settings.groups):
        wanted = group.replicas or settings.replicas
        replicas = _needed(wanted, f"kubernetes.groups.{index}.replicas")
        most = group.max_replicas or settings.max_replicas
        least = settings.min_replicas if group.min_replicas is None else group.min_replicas
        plain = _group(settings, group.name, replicas, least, most, tolerated)
        made.append(
            PodGroup(
                group.name, plain.replicas, plain.least, plain.most,
                tuple(group.gpu_products) or plain.gpu_products,
                {**plain.node_selector, **group.node_selector},
                (*plain.tolerations, *group.tolerations),
            )
        )  # fmt: skip
    return tuple(made)


def _group(
    settings: Kubernetes,
    name: str,
    replicas: int,
    least: int | None,
    most: int | None,
    tolerated: tuple[Toleration, ...],
) -> PodGroup:
    return PodGroup(
        name,
        replicas,
        least if least is not None and (most or settings.queue) else replicas,
        most or replicas,
        tuple(settings.gpu_products),
        dict(settings.node_selector),
        (*tolerated, *settings.tolerations),
    )


def _needed(replicas: int | None, name: str) -> int:
    if replicas is None:
        raise JobError(
            f"{name} is missing: nobody says how many pods there shall be",
            "Give it, or hardware.gpu and hardware.count: then the plan says it.",
        )
    return replicas


def _job_in_pods(job: Job, parallel: int, groups: tuple[PodGroup, ...]) -> dict[str, Any]:
    """The job file that pods read: without what concerns the cluster and this machine only."""
    data = job.model_dump(mode="json", exclude_defaults=True, exclude={"kubernetes", "hardware"})
    data = {"name": job.name, **{key: value for key, value in data.items() if key != "name"}}
    run = dict(data.get("run", {}))
    if job.kubernetes.mode == "job":
        run |= {"replicas": 1}  # one engine to a pod
    else:
        least, most = (sum(getattr(one, name) for one in groups) for name in ("least", "most"))
        run |= {"executor": "ray", "replicas": most}
        # The run begins with those, and takes more as Ray adds them. Pods of a Deployment come one
        # by one, on nodes that may have to be started; KubeRay waits for all before it sends the job.
        first = 1 if job.kubernetes.mode == "ray-deployment" else max(least, 1)
        if first < most:
            run["ray"] = {"min_replicas": first, **run.get("ray", {})}
    data["run"] = run
    if parallel > 1:
        # What a pod has cards for is settled now; all else the run plans on the card itself.
        engine = dict(data.get("engine", {}))
        options = dict(engine.get("options", {}))
        if "pipeline_parallel_size" not in options:
            options.setdefault("tensor_parallel_size", parallel)
        data["engine"] = {**engine, "options": options}
    return data
