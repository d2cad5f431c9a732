"""A workload to manifests, and manifests to files that a person can read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from batchwright.core.errors import JobError, NotAllowed
from batchwright.k8s.indexed import indexed_jobs
from batchwright.k8s.pod import Manifest, metadata
from batchwright.k8s.ray import ray_deployment, ray_job
from batchwright.k8s.workload import Workload

# What carries the work: the other objects belong to it, and go with it.
MAIN_KINDS = ("Job", "RayJob")

KUSTOMIZATION = "kustomization.yaml"


def manifests(workload: Workload) -> list[Manifest]:
    """Every object of the job, in the order in which they are created."""
    found = [_config_map(workload)]
    if workload.settings.dra and workload.shape.gpus:
        found.append(_claim_template(workload))
    if workload.settings.mode == "job":
        return [*found, *indexed_jobs(workload)]
    if workload.settings.mode == "ray":
        return [*found, ray_job(workload)]
    return [*found, *ray_deployment(workload)]


def _config_map(workload: Workload) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(workload, f"{workload.name}-job"),
        "data": dict(workload.files),
    }


def _claim_template(workload: Workload) -> Manifest:
    dra = workload.settings.dra
    assert dra is not None
    exactly: Manifest = {
        "deviceClassName": dra.device_class,
        "allocationMode": "ExactCount",
        "count": workload.shape.gpus,
    }
    if dra.selector:
        exactly["selectors"] = [{"cel": {"expression": dra.selector}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata(workload, f"{workload.name}-gpu"),
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }


class _Dumper(yaml.SafeDumper):
    """Texts of several lines stay texts of several lines."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Equal parts are written twice: anchors are hard to read."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(manifest: Manifest) -> str:
    """One object as YAML."""
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def write_manifests(found: Sequence[Manifest], folder: Path) -> list[Path]:
    """Write one file per object, and a kustomization of them.

    What an earlier rendering left there and this one has not is removed: `kubectl apply -f` would
    send it too.

    Returns:
        The files, in the order in which the objects are created.
    """
    names = [
        f"{number:02d}-{manifest['kind'].lower()}-{manifest['metadata']['name']}.yaml"
        for number, manifest in enumerate(found, 1)
    ]
    texts = {name: as_yaml(one) for name, one in zip(names, found, strict=True)}
    texts[KUSTOMIZATION] = as_yaml(
        {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": names,
        }
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _rendered_before(folder) - set(texts):
            (folder / name).unlink(missing_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise NotAllowed(f"cannot write the manifests to {folder}: {error.strerror}") from error
    return [folder / name for name in texts]


# What this module calls its files; others are left alone.
_OURS = re.compile(r"\d\d-[a-z]+-[a-z0-9.-]+\.yaml")


def _rendered_before(folder: Path) -> set[str]:
    """Names of the files that the kustomization of an earlier rendering lists."""
    try:
        earlier = yaml.safe_load((folder / KUSTOMIZATION).read_text(encoding="utf-8"))
    except (FileNotFoundError, UnicodeDecodeError, yaml.YAMLError):
        return set()
    listed = earlier.get("resources") if isinstance(earlier, dict) else None
    return {str(name) for name in listed or [] if _OURS.fullmatch(str(name))}


def read_manifests(paths: Iterable[Path]) -> list[tuple[str, Manifest]]:
    """The objects of YAML files and folders, each with where it stands.

    Raises:
        JobError: a file cannot be read, or holds something else.
    """
    found = []
    for path in paths:
        files = sorted(path.glob("*.y*ml")) if path.is_dir() else [path]
        for file in files:
            try:
                documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
            except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
                raise JobError(f"{file}: {error}") from error
            for document in documents:
                if document is None or file.name == KUSTOMIZATION:
                    continue
                if not isinstance(document, dict) or not document.get("kind"):
                    raise JobError(f"{file}: not an object of Kubernetes: it has no kind")
                found.append((str(file), document))
    return found
