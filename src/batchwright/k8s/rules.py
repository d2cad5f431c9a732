"""All rules on a set of manifests: each object by its kind, and what objects say of each other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from batchwright.k8s.job_rules import (
    claim_problems,
    deployment_problems,
    job_advice,
    job_problems,
    rayjob_problems,
)
from batchwright.k8s.pod_rules import pod_problems
from batchwright.k8s.problems import Findings, Manifest, Problem, pod_templates

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")

# Pods of a Job are called after it, with an index and five letters.
_SHORT = {"Job": 52, "RayJob": 47, "Service": 63}
# Their names become names of hosts.
_DNS_1035 = {"RayJob", "RayCluster", "Service"}
_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_CONFIG_MAP_BYTES = 1 << 20

_BY_KIND: dict[str, Callable[[Manifest], Findings]] = {
    "Job": job_problems,
    "RayJob": rayjob_problems,
    "Deployment": deployment_problems,
    "ResourceClaimTemplate": claim_problems,
}


def problems_of(manifests: Sequence[Manifest]) -> list[Problem]:
    """What an API server, an operator or the job's own sense would refuse."""
    found = []
    for manifest in manifests:
        name = f"{manifest.get('kind')}/{(manifest.get('metadata') or {}).get('name')}"
        found += [Problem(f"{name}: {at}", message) for at, message in _of_one(manifest)]
    return [*found, *_references(manifests)]


def advice_of(manifests: Sequence[Manifest]) -> list[Problem]:
    """What would be taken, and do harm later."""
    return [
        Problem(f"Job/{(manifest.get('metadata') or {}).get('name')}: {at}", message)
        for manifest in manifests
        if manifest.get("kind") == "Job"
        for at, message in job_advice(manifest)
    ]


def _of_one(manifest: Manifest) -> Findings:
    yield from _metadata(manifest)
    kind = str(manifest.get("kind"))
    if kind in _BY_KIND:
        yield from _BY_KIND[kind](manifest)
    if kind == "ConfigMap" and len(json.dumps(manifest.get("data") or {})) > _CONFIG_MAP_BYTES:
        yield "data", "a ConfigMap holds 1 MiB at most"
    for at, template in pod_templates(manifest):
        for place, message in pod_problems(template):
            yield at + place, message


def _metadata(manifest: Manifest) -> Findings:
    head = manifest.get("metadata") or {}
    name, most = str(head.get("name", "")), _SHORT.get(str(manifest.get("kind")), 253)
    if not _NAME.fullmatch(name):
        yield "metadata.name", f"{name!r} is no name: small letters, digits, hyphens and dots"
    elif manifest.get("kind") in _DNS_1035 and not _SERVICE.fullmatch(name):
        yield "metadata.name", f"{name!r}: it begins with a letter, and has no dots"
    elif len(name) > most:
        yield "metadata.name", f"it has more than {most} letters"
    for key, value in (head.get("labels") or {}).items():
        if len(str(value)) > 63 or not _LABEL_VALUE.fullmatch(str(value)):
            yield f"metadata.labels.{key}", "a label's value has at most 63 letters, digits, -_."


def _references(manifests: Sequence[Manifest]) -> list[Problem]:
    """A ConfigMap or claim template that a pod names, and that is not there under this name.

    It may be in the cluster already: it is a mistake only if the set has one that no pod names.
    """
    names: dict[str, set[str]] = {}
    for manifest in manifests:
        names.setdefault(str(manifest.get("kind")), set()).add(manifest["metadata"].get("name"))
    wanted = [
        (f"{manifest['kind']}/{manifest['metadata'].get('name')}: {at}spec", kind, name)
        for manifest in manifests
        for at, template in pod_templates(manifest)
        for kind, name in _named(template.get("spec") or {})
    ]
    left = {
        kind: known - {name for _, of, name in wanted if of == kind}
        for kind, known in names.items()
    }
    return [
        Problem(where, f"there is no {kind} {name}")
        for where, kind, name in wanted
        if left.get(kind) and name not in names[kind]
    ]


def _named(spec: Manifest) -> list[tuple[str, str]]:
    """What the volumes and claims of a pod name: kind and name."""
    found = [
        ("ConfigMap", (volume.get("configMap") or {}).get("name"))
        for volume in spec.get("volumes") or []
    ]
    found += [
        ("ResourceClaimTemplate", claim.get("resourceClaimTemplateName"))
        for claim in spec.get("resourceClaims") or []
    ]
    return [(kind, str(name)) for kind, name in found if name]
