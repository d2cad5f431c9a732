"""The cluster: a few verbs over its API, with the official client's login and connections."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from batchwright.core.errors import (
    BatchwrightError,
    ClusterError,
    Forbidden,
    JobError,
    MissingExtra,
)
from batchwright.k8s.problems import Manifest

EXTRA = "pip install 'batchwright[k8s]'"
TIMEOUT_S = 30.0

_HOME = Path("~/.kube/config")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a kind lives in the API."""

    group: str
    plural: str
    namespaced: bool = True
    older: str = ""


_PLACES = {
    "Pod": _Place("api/v1", "pods"),
    "Event": _Place("api/v1", "events"),
    "Service": _Place("api/v1", "services"),
    "Secret": _Place("api/v1", "secrets"),
    "ConfigMap": _Place("api/v1", "configmaps"),
    "ResourceQuota": _Place("api/v1", "resourcequotas"),
    "ServiceAccount": _Place("api/v1", "serviceaccounts"),
    "PersistentVolumeClaim": _Place("api/v1", "persistentvolumeclaims"),
    "Namespace": _Place("api/v1", "namespaces", namespaced=False),
    "Node": _Place("api/v1", "nodes", namespaced=False),
    "Job": _Place("apis/batch/v1", "jobs"),
    "Deployment": _Place("apis/apps/v1", "deployments"),
    "RayJob": _Place("apis/ray.io/v1", "rayjobs"),
    "ResourceClaimTemplate": _Place("apis/resource.k8s.io/v1", "resourceclaimtemplates"),
    "DeviceClass": _Place("apis/resource.k8s.io/v1", "deviceclasses", namespaced=False),
    "PriorityClass": _Place("apis/scheduling.k8s.io/v1", "priorityclasses", namespaced=False),
    "RuntimeClass": _Place("apis/node.k8s.io/v1", "runtimeclasses", namespaced=False),
    "LocalQueue": _Place(
        "apis/kueue.x-k8s.io/v1beta2", "localqueues", older="apis/kueue.x-k8s.io/v1beta1"
    ),
}


class Cluster:
    """One namespace of a cluster.

    Objects go in and come out as plain data: the client's own classes know only the fields of
    their version, and would drop others without a word.

    Args:
        context: of the kubeconfig; its current one if None. In a pod its own account is used.
        namespace: where objects live.

    Raises:
        JobError: there is no usable kubeconfig.
        MissingExtra: the client is not installed.
    """

    def __init__(self, context: str | None, namespace: str) -> None:
        self.namespace = namespace
        self._api = _connect(context)
        self._host = str(self._api.configuration.host).rstrip("/")

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Create an object; with `dry_run` the server only says whether it would.

        Raises:
            JobError: the server refuses it, or it is there already.
        """
        query = {"fieldManager": "batchwright", "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        kind = str(manifest["kind"])
        return self._json("POST", self._path(kind), query, manifest)

    def own(self, kind: str, name: str, owners: Sequence[Manifest]) -> None:
        """Make an object go when its owners have gone."""
        references = [
            {"apiVersion": one["apiVersion"], "kind": one["kind"],
             "name": one["metadata"]["name"], "uid": one["metadata"]["uid"]}
            for one in owners
        ]  # fmt: skip
        body = {"metadata": {"ownerReferences": references}}
        self._json("PATCH", self._path(kind, name), {}, body)

    def get(self, kind: str, name: str) -> Manifest | None:
        """An object, or None if there is none (or nothing of this kind at all)."""
        return self._if_there("GET", self._path(kind, name), {})

    def has(self, kind: str, name: str) -> bool:
        """Whether there is such an object. Its content stays where it is: it may be a Secret."""
        accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
        path, place = self._path(kind, name), _PLACES[kind]
        # A server of another version of the operator serves the same objects at another path.
        paths = [path, path.replace(place.group, place.older)] if place.older else [path]
        return any(self._if_there("GET", one, {}, None, accept) is not None for one in paths)

    def find(self, kind: str, selector: str = "") -> list[Manifest]:
        """All objects of a kind, with these labels; none if the cluster does not know the kind."""
        query = {"limit": "500"} | ({"labelSelector": selector} if selector else {})
        found: list[Manifest] = []
        while True:
            page = self._if_there("GET", self._path(kind), query) or {}
            found += page.get("items") or []
            query["continue"] = (page.get("metadata") or {}).get("continue") or ""
            if not query["continue"]:
                return found

    def delete(self, kind: str, name: str) -> bool:
        """Delete an object and what belongs to it; False if it was not there."""
        query = {"propagationPolicy": "Background"}
        return self._if_there("DELETE", self._path(kind, name), query) is not None

    def log(self, pod: str, *, container: str, tail: int | None, follow: bool) -> Iterator[str]:
        """Lines of a container's log."""
        query = {"container": container, "follow": str(follow).lower()}
        if tail is not None:
            query["tailLines"] = str(tail)
        path = self._path("Pod", pod) + "/log"
        wait_s = None if follow else TIMEOUT_S
        response = self._request("GET", path, query, None, accept="*/*", timeout_s=wait_s)
        if response.status >= 300:
            raise _refusal(response.status, b"".join(self._pieces(response)), path)
        rest = b""
        for piece in self._pieces(response):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace")
        if rest:
            yield rest.decode(errors="replace")

    def _pieces(self, response: Any) -> Iterator[bytes]:
        """An answer as it comes; one that breaks off is an error, and no short answer."""
        import urllib3

        try:
            yield from response.stream(2**16)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterError(f"the connection to {self._host} broke: {error}") from error

    def _path(self, kind: str, name: str = "") -> str:
        place = _PLACES[kind]
        inside = f"/namespaces/{self.namespace}" if place.namespaced else ""
        return f"/{place.group}{inside}/{place.plural}" + (f"/{name}" if name else "")

    def _json(self, method: str, path: str, query: Mapping[str, str], body: Manifest) -> Manifest:
        found = self._if_there(method, path, query, body)
        if found is None:
            raise JobError(
                f"the cluster knows no {path}",
                "Is the operator or the version that it belongs to installed, and the namespace there?",
            )
        return found

    def _if_there(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Manifest | None = None,
        accept: str = "application/json",
    ) -> Manifest | None:
        response = self._request(method, path, query, body, accept=accept)
        data = b"".join(self._pieces(response))
        if response.status == 404:
            return None
        if response.status >= 300:
            raise _refusal(response.status, data, f"{method} {path}")
        try:
            return dict(json.loads(data))
        except ValueError as error:
            raise ClusterError(f"{self._host}{path}: the answer is not JSON") from error

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Manifest | None,
        *,
        accept: str,
        timeout_s: float | None = TIMEOUT_S,
    ) -> Any:
        import urllib3

        content = "merge-patch+json" if method == "PATCH" else "json"
        headers = {"Accept": accept, "Content-Type": f"application/{content}"}
        for one in self._api.configuration.auth_settings().values():
            if one["in"] == "header" and one["value"]:
                headers[one["key"]] = one["value"]
        url = f"{self._host}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            return self._api.rest_client.pool_manager.request(
                method, url, headers=headers, preload_content=False,
                body=None if body is None else json.dumps(body),
                timeout=urllib3.Timeout(connect=10.0, read=timeout_s), retries=_retries(method),
            )  # fmt: skip
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterError(
                f"the API server {self._host} does not answer: {error}",
                "Is this the right context (kubernetes.context), and can it be reached from here?",
            ) from error


def _retries(method: str) -> Any:
    """What only reads is tried again; what changes something may have been done already."""
    import urllib3

    if method != "GET":
        return urllib3.Retry(0, redirect=0)
    return urllib3.Retry(
        3, redirect=0, backoff_factor=0.3, status_forcelist=[429, 502, 503, 504],
        raise_on_status=False,
    )  # fmt: skip


def _connect(context: str | None) -> Any:
    try:
        import kubernetes.client
        import kubernetes.config
        from kubernetes.config.config_exception import ConfigException
    except ImportError as error:
        raise MissingExtra("talking to a cluster needs the package kubernetes", EXTRA) from error
    configuration: Any = kubernetes.client.Configuration()
    config: Any = kubernetes.config
    try:
        if context is None and _in_a_pod():
            config.load_incluster_config(client_configuration=configuration)
        else:
            # Named, since the client remembers what the variable was when it was loaded.
            config.load_kube_config(
                os.environ.get("KUBECONFIG") or str(_HOME.expanduser()),
                context=context,
                client_configuration=configuration,
            )
    except (ConfigException, OSError, yaml.YAMLError, TypeError, ValueError) as error:
        # The client takes any file for a kubeconfig, and falls over what it finds in it.
        why = " ".join(str(error).split())
        raise JobError(
            f"no cluster to talk to: {why}",
            "Set KUBECONFIG, or name one of its contexts: kubernetes.context.",
        ) from error
    return kubernetes.client.ApiClient(configuration)


def _in_a_pod() -> bool:
    given = os.environ.get("KUBECONFIG") or _HOME.expanduser().is_file()
    return not given and "KUBERNETES_SERVICE_HOST" in os.environ


def _refusal(status: int, body: bytes, what: str) -> BatchwrightError:
    """The server's answer as an error of ours, with its own words."""
    try:
        message = str(json.loads(body).get("message") or "")
    except (ValueError, AttributeError):
        message = body[:300].decode(errors="replace")
    if status == 401:
        return JobError(f"the cluster does not know you: {message}", "Log in again.")
    if status == 403:
        if "exceeded quota" in message:
            return JobError(f"the namespace's quota is used up: {message}")
        return Forbidden(f"the cluster does not allow it: {message}", "Ask for that right.")
    if status == 409:
        return JobError(
            f"it is there already: {message}",
            "`batchwright k8s status` shows it, `batchwright k8s delete` removes it; the rows that "
            "are done stay in the run directory.",
        )
    if status in {400, 422}:
        return JobError(f"the cluster refuses it: {message}")
    return ClusterError(f"{what}: {status} {message}", "Try again later.")
