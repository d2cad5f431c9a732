"""What can be known before anything is sent: quota, nodes, and the objects that pods refer to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

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


def quota_doubts(pods: Sequence[tuple[int, Amounts]], quotas: Sequence[Manifest]) -> list[Doubt]:
    """Where the namespace's quota is too small for all pods, or for any."""
    found = []
    for quota in quotas:
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


def node_doubts(workload: Workload, nodes: Sequence[Manifest]) -> list[Doubt]:
    """Whether there are nodes of the wanted kind, and cards enough."""
    if not workload.shape.gpus or workload.settings.dra:
        return []
    found: list[Doubt] = []
    for group in workload.groups:
        found += _group_doubts(workload, group, nodes)
    return found


def _group_doubts(
    workload: Workload, group: PodGroup, nodes: Sequence[Manifest]
) -> Iterator[Doubt]:
    settings, resource = workload.settings, workload.settings.gpu_resource
    whose = f"group {group.name}: " if group.name else ""
    fitting = [node for node in nodes if _fits(node, group, settings.gpu_product_label)]
    if not fitting:
        kinds = sorted({_labels(node).get(settings.gpu_product_label, "") for node in nodes} - {""})
        there = f"; there are {', '.join(kinds)}" if kinds else ""
        # A node pool may be scaled to zero: nobody can tell from here.
        yield Doubt(f"{whose}no node of the wanted kind is up now{there}", blocks=False)
        return
    cards = [
        parse_quantity(((node.get("status") or {}).get("allocatable") or {}).get(resource, "0"))
        or Decimal(0)
        for node in fitting
    ]
    each = workload.shape.gpus
    if max(cards) < each:
        yield Doubt(
            f"{whose}a pod needs {each} cards ({resource}), the largest node has {max(cards)}",
            blocks=True,
        )
        return
    room = sum(int(number) // each for number in cards)
    if room < group.replicas:
        yield Doubt(
            f"{whose}the nodes that are up have room for {room} of {group.replicas} pods, if "
            "nothing else runs there",
            blocks=False,
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
    found += [
        ("PersistentVolumeClaim", volume.claim, "volumes")
        for volume in settings.all_volumes
        if volume.claim
    ]
    for kind, name, field in (
        ("PriorityClass", settings.priority_class, "priority_class"),
        ("ServiceAccount", settings.service_account, "service_account"),
        ("LocalQueue", settings.queue, "queue"),
        ("DeviceClass", settings.dra and settings.dra.device_class, "dra.device_class"),
    ):
        if name:
            found.append((kind, name, field))
    return list(dict.fromkeys(found))


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
