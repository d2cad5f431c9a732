"""What can be known before anything is sent: quota, nodes, and the objects that pods refer to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from batchwright.config.job import Job
from batchwright.config.kubernetes import Volume
from batchwright.core.errors import BatchwrightError
from batchwright.k8s.problems import Manifest, pod_templates
from batchwright.k8s.quantity import parse_quantity
from batchwright.k8s.workload import PodGroup, Workload

Amounts = dict[str, Decimal]


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something that speaks against sending a job.

    Attributes:
        blocks: whether not even one pod could run.
    """

    message: str
    blocks: bool


def needed(manifests: Sequence[Manifest]) -> list[tuple[int, Amounts]]:
    """Pods with what each asks for, from Jobs, Deployments and RayJobs."""
    found = []
    for manifest in manifests:
        templates = pod_templates(manifest)
        for at, template in templates:
            found.append((_replicas(manifest, at), _requests(template)))
    return found


def _replicas(manifest: Manifest, at: str) -> int:
    spec = manifest["spec"]
    if "workerGroupSpecs" in at:
        index = int(at.split("workerGroupSpecs.")[1].split(".", maxsplit=1)[0])
        return int(spec["rayClusterSpec"]["workerGroupSpecs"][index]["replicas"])
    if manifest["kind"] == "Job":
        return int(spec["parallelism"])
    return int(spec.get("replicas", 1)) if manifest["kind"] == "Deployment" else 1


def _requests(template: Manifest) -> Amounts:
    total: Amounts = {"pods": Decimal(1)}
    for container in template["spec"]["containers"]:
        for name, value in (container["resources"]["requests"]).items():
            total[name] = total.get(name, Decimal(0)) + (parse_quantity(value) or 0)
    return total


def quota_doubts(
    pods: Sequence[tuple[int, Amounts]],
    quotas: Sequence[Manifest],
    priority_class: str | None = None,
) -> list[Doubt]:
    """Where the namespace's quota is too small for all pods, or for any."""
    found = []
    for quota in quotas:
        if not _counts(quota, priority_class):
            continue
        status = quota.get("status") or {}
        hard, used = status.get("hard") or {}, status.get("used") or {}
        for name, value in hard.items():
            limit, taken = parse_quantity(value), parse_quantity(used.get(name, "0"))
            plain = name.removeprefix("requests.").removeprefix("limits.")
            each = max((amounts.get(plain, Decimal(0)) for _, amounts in pods), default=Decimal(0))
            total = sum(
                (count * amounts.get(plain, Decimal(0)) for count, amounts in pods), Decimal(0)
            )
            if limit is None or not total:
                continue
            free = limit - (taken or 0)
            where = f"quota {quota['metadata']['name']}: {name}"
            if each > limit:
                found.append(
                    Doubt(
                        f"{where}: one pod needs {_short(each)}, {value} is all there is",
                        blocks=True,
                    )
                )
            elif total > free:
                found.append(Doubt(
                    f"{where}: all pods need {_short(total)}, {_short(free)} of {value} is free: some will wait",
                    blocks=False,
                ))  # fmt: skip
    return found


def _counts(quota: Manifest, priority_class: str | None) -> bool:
    """Whether a quota is about pods like ours: with requests, without a deadline of their own."""
    spec = quota.get("spec") or {}
    if {"BestEffort", "Terminating"} & set(spec.get("scopes") or []):
        return False
    chosen = (spec.get("scopeSelector") or {}).get("matchExpressions") or []
    return all(_in_scope(one, priority_class) for one in chosen)


def _in_scope(one: Manifest, priority_class: str | None) -> bool:
    name, operator = one.get("scopeName"), one.get("operator")
    if name != "PriorityClass":
        return name in {"NotBestEffort", "NotTerminating"}
    named = priority_class in (one.get("values") or [])
    return {
        "In": named,
        "NotIn": not named,
        "Exists": priority_class is not None,
        "DoesNotExist": priority_class is None,
    }.get(str(operator), True)


def budget_doubts(job: Job, has_begun: Callable[[], bool]) -> list[Doubt]:
    """Pods without a leader make no pilot: with a budget, each would end at once (exit code 2).

    Args:
        job: the resolved job.
        has_begun: whether its run is there; raises BatchwrightError if that is not seen from here.
    """
    budget = job.plan.max_hours is not None or job.plan.max_usd is not None
    if not budget or job.kubernetes.mode != "job":
        return []
    message = (
        "plan.max_hours and plan.max_usd need a pilot, which the pods do not make: run "
        "`batchwright pilot` with this job file first, on a machine with such a card"
    )
    try:
        # A folder is below a volume, which this machine may not have.
        return [] if has_begun() else [Doubt(message, blocks="://" in job.run.dir)]
    except BatchwrightError as error:
        return [
            Doubt(f"{message} (whether that was done is not seen: {error.message})", blocks=False)
        ]


def node_doubts(workload: Workload, nodes: Sequence[Manifest]) -> list[Doubt]:
    """Whether there are nodes of the wanted kind, with cards, cores and memory enough."""
    found: list[Doubt] = []
    for group in workload.groups:
        found += _group_doubts(workload, group, nodes)
    return found


def _group_doubts(
    workload: Workload, group: PodGroup, nodes: Sequence[Manifest]
) -> Iterator[Doubt]:
    settings = workload.settings
    whose = f"group {group.name}: " if group.name else ""
    fitting = [node for node in nodes if _fits(node, group, settings.gpu_product_label)]
    if not fitting:
        kinds = sorted({_labels(node).get(settings.gpu_product_label, "") for node in nodes} - {""})
        there = f"; there are {', '.join(kinds)}" if kinds else ""
        # A node pool may be scaled to zero: nobody can tell from here.
        yield Doubt(f"{whose}no node of the wanted kind is up now{there}", blocks=False)
        return
    wanted = _wanted(workload)
    rooms = [_pods_in(node, wanted) for node in fitting]
    if max(rooms) == 0:
        yield Doubt(f"{whose}{_too_small(wanted, fitting)}", blocks=True)
    elif sum(rooms) < group.replicas:
        yield Doubt(
            f"{whose}the nodes that are up have room for {sum(rooms)} of {group.replicas} pods, if "
            "nothing else runs there",
            blocks=False,
        )


def _wanted(workload: Workload) -> dict[str, str]:
    """What one pod asks of a node; devices of DRA are no resource of the node."""
    settings, shape = workload.settings, workload.shape
    wanted = {"cpu": shape.cpu, "memory": shape.memory}
    if shape.gpus and not settings.dra:
        wanted = {settings.gpu_resource: str(shape.gpus)} | wanted
    if settings.ephemeral_storage:
        wanted["ephemeral-storage"] = settings.ephemeral_storage
    return wanted


def _allocatable(node: Manifest, name: str) -> Decimal | None:
    """What pods can have of a node; None where it does not tell, which it does of cards only."""
    value = ((node.get("status") or {}).get("allocatable") or {}).get(name)
    if value is None:
        return Decimal(0) if "/" in name else None
    return parse_quantity(value)


def _pods_in(node: Manifest, wanted: Mapping[str, str]) -> int:
    rooms = [
        int(there // (parse_quantity(value) or 1))
        for name, value in wanted.items()
        if (there := _allocatable(node, name)) is not None
    ]
    return min(rooms, default=1)


# Which key of the job file says how much of it a pod asks for.
_KEYS = {
    "cpu": ("cores", "cpu_per_gpu"),
    "memory": ("memory", "memory_per_gpu"),
    "ephemeral-storage": ("disk", "ephemeral_storage"),
}


def _too_small(wanted: Mapping[str, str], nodes: Sequence[Manifest]) -> str:
    """What no node has enough of, even if it were empty."""
    said = []
    for name, value in wanted.items():
        there = [_allocatable(node, name) for node in nodes]
        most = max((one for one in there if one is not None), default=Decimal(0))
        if None in there or most >= (parse_quantity(value) or 0):
            continue
        if "/" in name:
            return f"a pod needs {value} cards ({name}), the largest node has {most}"
        what, key = _KEYS[name]
        said.append(f"{value} {what}, the largest node has {_short(most)} (kubernetes.{key})")
    return (
        f"a pod needs {'; '.join(said)}"
        if said
        else (
            "no node has all at once that a pod needs: "
            + ", ".join(f"{value} {name}" for name, value in wanted.items())
        )
    )


def _labels(node: Manifest) -> dict[str, str]:
    return dict(node["metadata"].get("labels") or {})


def _fits(node: Manifest, group: PodGroup, product_label: str) -> bool:
    labels = _labels(node)
    if any(labels.get(key) != value for key, value in group.node_selector.items()):
        return False
    if group.gpu_products and labels.get(product_label) not in group.gpu_products:
        return False
    taints = (node.get("spec") or {}).get("taints") or []
    return all(_tolerated(taint, group) for taint in taints)


def _tolerated(taint: Manifest, group: PodGroup) -> bool:
    if taint.get("effect") == "PreferNoSchedule":
        return True
    return any(
        (one.key is None or one.key == taint.get("key"))
        and (one.operator == "Exists" or (one.value or "") == (taint.get("value") or ""))
        and (one.effect is None or one.effect == taint.get("effect"))
        for one in group.tolerations
    )


def referenced(workload: Workload) -> list[tuple[str, str, str]]:
    """Objects that must be there: kind, name, and the field that names each."""
    settings = workload.settings
    found = [("Secret", name, "image_pull_secrets") for name in settings.image_pull_secrets]
    found += [("Secret", name, "env_from_secrets") for name in settings.env_from_secrets]
    found += [
        ("Secret", reference.partition("/")[0], f"secret_env.{variable}")
        for variable, reference in settings.secret_env.items()
    ]
    named: list[tuple[str, str | None, str]] = []
    for volume in settings.all_volumes:
        named += [
            ("PersistentVolumeClaim", volume.claim, "volumes"),
            ("Secret", volume.secret, "volumes"),
            ("ConfigMap", volume.config_map, "volumes"),
        ]
    named += [
        ("PriorityClass", settings.priority_class, "priority_class"),
        ("RuntimeClass", settings.runtime_class, "runtime_class"),
        ("ServiceAccount", settings.service_account, "service_account"),
        ("LocalQueue", settings.queue, "queue"),
        ("DeviceClass", settings.dra.device_class if settings.dra else None, "dra.device_class"),
    ]
    found += [(kind, name, field) for kind, name, field in named if name]
    return list(dict.fromkeys(found))


def volume_doubts(
    volume: Volume, get: Callable[[str, str], Manifest | None], pods: int
) -> list[Doubt]:
    """What speaks against a volume that is a claim; `get` fetches an object by kind and name."""
    claim = get("PersistentVolumeClaim", volume.claim) if volume.claim else None
    doubt = claim_doubt(claim, writes=not volume.read_only, pods=pods) if claim else None
    return [doubt] if doubt else []


def claim_doubt(claim: Manifest, *, writes: bool, pods: int) -> Doubt | None:
    """A claim that several pods cannot share keeps all but those of one node waiting."""
    modes = (claim.get("spec") or {}).get("accessModes") or []
    wanted = {"ReadWriteMany"} if writes else {"ReadWriteMany", "ReadOnlyMany"}
    if pods == 1 or wanted & set(modes):
        return None
    name = claim["metadata"]["name"]
    return Doubt(
        f"kubernetes.volumes: the claim {name} has {', '.join(modes) or 'no access mode'}; "
        f"{pods} pods need ReadWriteMany",
        blocks=True,
    )


def _short(number: Decimal) -> str:
    return f"{number.normalize():f}" if number < 10**6 else f"{number / (1 << 30):.0f}Gi"
