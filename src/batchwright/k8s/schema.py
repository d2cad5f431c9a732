"""Manifests against the schemas of a Kubernetes version: unknown fields, types, what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from batchwright.core.errors import JobError, MissingExtra
from batchwright.k8s.problems import Manifest, Problem

EXTRA = "pip install 'batchwright[k8s]'"


def schema_problems(manifests: Sequence[Manifest], version: str) -> list[Problem]:
    """What the schemas of a version refuse. Objects of operators (RayJob) have none here.

    Raises:
        JobError: there are no schemas for this version.
        MissingExtra: the package with the schemas is not installed.
    """
    try:
        import kubernetes_validate
        from kubernetes_validate.utils import VersionNotSupportedError
    except ImportError as error:
        raise MissingExtra(
            "checking manifests needs the package kubernetes-validate", EXTRA
        ) from error
    found = []
    for manifest in manifests:
        where = f"{manifest.get('kind')}/{(manifest.get('metadata') or {}).get('name')}"
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            place = ".".join(str(step) for step in error.path)
            found.append(Problem(f"{where}: {place}", str(error.message)[:300]))
        except kubernetes_validate.SchemaNotFoundError:
            if "." not in str(manifest.get("apiVersion", "")).replace(".k8s.io", ""):
                found.append(
                    Problem(where, f"{manifest.get('apiVersion')} is not in Kubernetes {version}")
                )
        except VersionNotSupportedError as error:
            raise JobError(
                f"kubernetes.version: there are no schemas for {version}",
                f"The newest are for {kubernetes_validate.latest_version()}.",
            ) from error
        except KeyError as error:
            found.append(Problem(where, f"{error.args[0]} is missing"))
    return found
