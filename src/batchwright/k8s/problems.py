"""A mistake in a manifest: where it is, what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake.

    Attributes:
        where: `Job/reviews: spec.template.spec.restartPolicy`.
        message: what is wrong.
    """

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


# A place below an object, and what is wrong there.
Findings = Iterator[tuple[str, str]]


def pod_templates(manifest: Manifest) -> list[tuple[str, Manifest]]:
    """Every pod that an object makes, with the path to it."""
    kind, spec = manifest.get("kind"), manifest.get("spec") or {}
    if kind == "Pod":
        return [("", manifest)]
    if kind in {"Job", "Deployment"}:
        return [("spec.template.", spec.get("template") or {})]
    if kind not in {"RayJob", "RayCluster"}:
        return []
    found = []
    at, cluster = "spec.", spec
    if kind == "RayJob":
        at, cluster = "spec.rayClusterSpec.", spec.get("rayClusterSpec") or {}
        if spec.get("submitterPodTemplate"):
            found.append(("spec.submitterPodTemplate.", spec["submitterPodTemplate"]))
    head = cluster.get("headGroupSpec") or {}
    found.append((f"{at}headGroupSpec.template.", head.get("template") or {}))
    for index, group in enumerate(cluster.get("workerGroupSpecs") or []):
        found.append((f"{at}workerGroupSpecs.{index}.template.", group.get("template") or {}))
    return found


def containers(pod: Manifest) -> list[tuple[str, Manifest]]:
    """The containers of a pod, with the path to each."""
    spec = pod.get("spec") or {}
    return [
        (f"spec.{kind}.{index}.", container)
        for kind in ("initContainers", "containers")
        for index, container in enumerate(spec.get(kind) or [])
    ]
