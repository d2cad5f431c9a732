"""Rules on pods that an API server or a kubelet enforces and no schema holds."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from batchwright.k8s.problems import Findings, Manifest, containers
from batchwright.k8s.quantity import parse_quantity

GPU_RESOURCE = re.compile(r"[a-z0-9.-]+/gpu")
SHM = "/dev/shm"  # noqa: S108

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_OUTPUT = re.compile(r"/(out|output|outputs|results?|runs?)(/|$)")
_PARALLEL = re.compile(r"--(tensor|pipeline)-parallel-size[= ](\d+)")


def pod_problems(pod: Manifest) -> Findings:
    """Everything that is wrong with a pod, or with the template of one."""
    yield from _labels(pod)
    yield from _manners(pod.get("spec") or {})
    yield from _volumes(pod)
    yield from _claims(pod)
    yield from _shared_memory(pod)
    for at, container in containers(pod):
        for place, message in (
            *_container(container), *_resources(container.get("resources") or {})
        ):  # fmt: skip
            yield at + place, message


def _labels(pod: Manifest) -> Findings:
    for key, value in ((pod.get("metadata") or {}).get("labels") or {}).items():
        if len(str(value)) > 63 or not _LABEL_VALUE.fullmatch(str(value)):
            yield f"metadata.labels.{key}", "a label's value has at most 63 letters, digits, -_."


def _manners(spec: Manifest) -> Findings:
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        yield "spec.terminationGracePeriodSeconds", "it cannot be negative"
    security = spec.get("securityContext") or {}
    if security.get("runAsNonRoot") and security.get("runAsUser") == 0:
        yield "spec.securityContext", "runAsNonRoot, but runAsUser is 0, which is root"
    for key, value in (spec.get("nodeSelector") or {}).items():
        if len(str(value)) > 63 or not _LABEL_VALUE.fullmatch(str(value)):
            yield f"spec.nodeSelector.{key}", f"{value!r} is not the value of a label"
    for index, one in enumerate(spec.get("tolerations") or []):
        yield from _toleration(f"spec.tolerations.{index}", one)


def _toleration(at: str, one: Manifest) -> Findings:
    operator = one.get("operator", "Equal")
    if operator not in {"Equal", "Exists"}:
        yield f"{at}.operator", f"{operator} is neither Equal nor Exists"
    if operator == "Exists" and one.get("value"):
        yield f"{at}.value", "with the operator Exists there is no value"
    effect = one.get("effect")
    if effect not in {None, "", "NoSchedule", "PreferNoSchedule", "NoExecute"}:
        yield f"{at}.effect", f"{effect} is not NoSchedule, PreferNoSchedule or NoExecute"


def _container(container: Manifest) -> Findings:
    name = str(container.get("name", ""))
    if not _DNS_LABEL.fullmatch(name):
        yield "name", f"{name!r} is no name: small letters, digits and hyphens, at most 63"
    policy = container.get("imagePullPolicy")
    if policy not in {None, "Always", "IfNotPresent", "Never"}:
        yield "imagePullPolicy", f"{policy} is not Always, IfNotPresent or Never"
    if not container.get("image"):
        yield "image", "it is missing"
    paths = [mount.get("mountPath") for mount in container.get("volumeMounts") or []]
    for path in sorted({str(path) for path in paths if paths.count(path) > 1}):
        yield "volumeMounts", f"two are mounted at {path}"


def _resources(resources: Manifest) -> Findings:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, values in (("limits", limits), ("requests", requests)):
        for name, value in values.items():
            number = parse_quantity(value)
            if number is None or number < 0:
                yield (
                    f"resources.{kind}.{name}",
                    f"{value!r} is not a quantity, such as 4Gi or 500m",
                )
    for name in sorted({*limits, *requests}):
        asked, most = parse_quantity(requests.get(name)), parse_quantity(limits.get(name))
        yield from _of_one_resource(name, asked, most)


def _of_one_resource(name: str, asked: Decimal | None, most: Decimal | None) -> Findings:
    if GPU_RESOURCE.fullmatch(name):
        if most is None:
            yield f"resources.limits.{name}", "cards need a limit"
        elif asked is not None and asked != most:
            yield f"resources.requests.{name}", "for cards the request must be the limit"
        if most is not None and most != int(most):
            yield f"resources.limits.{name}", "cards are whole; for shares of one use HAMi or MIG"
    elif asked is not None and most is not None and asked > most:
        yield f"resources.requests.{name}", "it is more than the limit"


def _volumes(pod: Manifest) -> Findings:
    volumes = (pod.get("spec") or {}).get("volumes") or []
    by_name = {str(volume.get("name")): volume for volume in volumes}
    if len(by_name) < len(volumes):
        yield "spec.volumes", "two have the same name"
    for index, volume in enumerate(volumes):
        for name, value in (volume.get("emptyDir") or {}).items():
            if name == "sizeLimit" and parse_quantity(value) is None:
                yield f"spec.volumes.{index}.emptyDir.sizeLimit", f"{value!r} is not a quantity"
    for at, container in containers(pod):
        for index, mount in enumerate(container.get("volumeMounts") or []):
            yield from _mount(f"{at}volumeMounts.{index}", mount, by_name)


def _mount(at: str, mount: Manifest, volumes: dict[str, Any]) -> Findings:
    name, path = str(mount.get("name")), str(mount.get("mountPath", ""))
    volume = volumes.get(name)
    if volume is None:
        yield f"{at}.name", f"there is no volume {name}"
        return
    empty = "emptyDir" in volume
    if empty and (volume["emptyDir"] or {}).get("medium") != "Memory" and _OUTPUT.search(path):
        yield at, f"{path} is an emptyDir: what is written there goes with the pod"


def _claims(pod: Manifest) -> Findings:
    known = {one.get("name") for one in (pod.get("spec") or {}).get("resourceClaims") or []}
    for at, container in containers(pod):
        for one in (container.get("resources") or {}).get("claims") or []:
            if one.get("name") not in known:
                yield f"{at}resources.claims", f"the pod has no resource claim {one.get('name')}"


def _shared_memory(pod: Manifest) -> Findings:
    spec = pod.get("spec") or {}
    volumes = {str(one.get("name")): one for one in spec.get("volumes") or []}
    for at, container in containers(pod):
        mounts = container.get("volumeMounts") or []
        shm = [mount for mount in mounts if str(mount.get("mountPath", "")).rstrip("/") == SHM]
        if not shm:
            if _cards(container) > 1:
                yield (
                    f"{at}volumeMounts",
                    "an engine over several cards needs a volume in memory at /dev/shm; the "
                    "default of 64 MB kills it",
                )
            continue
        empty = (volumes.get(str(shm[0].get("name"))) or {}).get("emptyDir")
        if empty is not None and (empty or {}).get("medium") != "Memory":
            yield f"{at}volumeMounts", f"{SHM} must be an emptyDir with medium: Memory"
        yield from _shm_fits(at, empty or {}, container)


def _shm_fits(at: str, empty: Manifest, container: Manifest) -> Findings:
    size = parse_quantity(empty.get("sizeLimit"))
    memory = parse_quantity(((container.get("resources") or {}).get("limits") or {}).get("memory"))
    if size is not None and memory is not None and size >= memory:
        yield f"{at}resources.limits.memory", f"{SHM} counts against it, and takes all of it"


def _cards(container: Manifest) -> int:
    """Cards that a container's engine spans, by what it asks for and by its arguments."""
    limits = (container.get("resources") or {}).get("limits") or {}
    cards = [
        parse_quantity(value) for name, value in limits.items() if GPU_RESOURCE.fullmatch(name)
    ]
    words = " ".join(map(str, [*(container.get("command") or []), *(container.get("args") or [])]))
    spans = [int(found[2]) for found in _PARALLEL.finditer(words)]
    return max([int(number) for number in cards if number is not None] + spans, default=0)
