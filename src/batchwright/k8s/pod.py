"""The pod that all manifests share: one container, its resources, volumes and manners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batchwright.config.kubernetes import Kubernetes, Toleration, Volume
from batchwright.k8s.workload import CONFIG_DIR, PodGroup, PodShape, Workload

JOB_LABEL = "batchwright/job"
ROLE_LABEL = "batchwright/role"
GROUP_LABEL = "batchwright/group"

# Two jobs may have one name: which of them an object belongs to, its run directory says.
RUN_DIR = "batchwright/run-dir"

CONTAINER = "batchwright"
SCRATCH = "/scratch"

# A pod that only asks another one to do something.
TINY = PodShape(gpus=0, cpu="500m", memory="1Gi", shm="64Mi")

# A head of a Ray cluster and a driver compute nothing.
SMALL = PodShape(gpus=0, cpu="2", memory="8Gi", shm="2Gi")

Manifest = dict[str, Any]

# What a namespace with restricted Pod Security wants of every container.
UNPRIVILEGED: Manifest = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def labels(workload: Workload, role: str = "", group: str = "") -> dict[str, str]:
    """The labels by which `status`, `logs` and `delete` find what belongs to a job."""
    found = {
        **workload.settings.labels,
        "app.kubernetes.io/name": "batchwright",
        "app.kubernetes.io/managed-by": "batchwright",
        JOB_LABEL: workload.name,
    }
    if role:
        found[ROLE_LABEL] = role
    if group:
        found[GROUP_LABEL] = group
    return found


def metadata(workload: Workload, name: str, **more: Any) -> Manifest:
    """Metadata of an object of the job."""
    return {
        "name": name,
        "namespace": workload.settings.namespace,
        "labels": labels(workload),
        **more,
    }


def pod_template(
    workload: Workload,
    group: PodGroup | None,
    command: Sequence[str],
    *,
    role: str,
    shape: PodShape | None = None,
    restart: str | None = "Never",
    read_only_root: bool = True,
    token: bool = False,
) -> Manifest:
    """A pod.

    Args:
        workload: what runs.
        group: whose nodes to use; None for pods that compute nothing.
        command: of the container; empty if an operator gives it.
        role: `worker`, `head` or `driver`, as a label.
        shape: other resources than the workload's.
        restart: the restart policy; None if an operator gives it.
        read_only_root: whether the container's own file system is read only.
        token: whether it speaks to the API server, even if no account is named.
    """
    settings, shape = workload.settings, shape or workload.shape
    spec: Manifest = {"restartPolicy": restart} if restart else {}
    spec["terminationGracePeriodSeconds"] = workload.grace_s
    spec |= _identity(settings, token=token)
    spec |= _placement(settings, group or workload.anywhere)
    if settings.runtime_class and shape.gpus:
        spec["runtimeClassName"] = settings.runtime_class
    if settings.dra and shape.gpus:
        spec["resourceClaims"] = [
            {"name": "gpu", "resourceClaimTemplateName": f"{workload.name}-gpu"}
        ]
    spec["containers"] = [_container(workload, command, shape, read_only_root=read_only_root)]
    spec["volumes"] = _volumes(workload, shape)
    head: Manifest = {"labels": labels(workload, role, group.name if group else "")}
    if settings.annotations:
        head["annotations"] = dict(settings.annotations)
    return {"metadata": head, "spec": spec}


def with_metrics(workload: Workload, template: Manifest) -> Manifest:
    """The pod with its port for metrics, and what Prometheus looks for to find it."""
    if workload.metrics_port is None:
        return template
    port = workload.metrics_port
    found = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(port),
        "prometheus.io/path": "/metrics",
    }
    head = template["metadata"]
    head["annotations"] = {**found, **head.get("annotations", {})}
    container = template["spec"]["containers"][0]
    # Not "metrics": KubeRay would take it for the port of Ray's own.
    container.setdefault("ports", []).append({"name": "run-metrics", "containerPort": port})
    return template


def _user(user_id: int | None) -> Manifest:
    if user_id is None:
        return {}
    return {"runAsUser": user_id, "runAsGroup": user_id, "fsGroup": user_id}


def _identity(settings: Kubernetes, *, token: bool) -> Manifest:
    found: Manifest = {
        "securityContext": {
            "runAsNonRoot": True,
            **_user(settings.user_id),
            # A model cache of a million files would take minutes to hand over at every start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "enableServiceLinks": False,
        # Only who names an account has a use for its token, and Ray's autoscaler.
        "automountServiceAccountToken": token or settings.service_account is not None,
    }
    if settings.service_account:
        found["serviceAccountName"] = settings.service_account
    if settings.priority_class:
        found["priorityClassName"] = settings.priority_class
    if settings.image_pull_secrets:
        found["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    return found


def _placement(settings: Kubernetes, group: PodGroup) -> Manifest:
    selector = dict(group.node_selector)
    found: Manifest = {}
    if len(group.gpu_products) == 1:
        selector[settings.gpu_product_label] = group.gpu_products[0]
    elif group.gpu_products:
        one_of = {
            "key": settings.gpu_product_label,
            "operator": "In",
            "values": list(group.gpu_products),
        }
        terms = {"nodeSelectorTerms": [{"matchExpressions": [one_of]}]}
        found["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        }
    if selector:
        found["nodeSelector"] = selector
    if group.tolerations:
        found["tolerations"] = [_toleration(one) for one in group.tolerations]
    return found


def _toleration(one: Toleration) -> Manifest:
    return one.model_dump(exclude_none=True)


def _container(
    workload: Workload, command: Sequence[str], shape: PodShape, *, read_only_root: bool
) -> Manifest:
    settings = workload.settings
    container: Manifest = {
        "name": CONTAINER,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
    }
    if command:
        container["command"] = list(command)
    container["env"] = _environment(settings)
    if settings.env_from_secrets:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in settings.env_from_secrets]
    container["resources"] = _resources(settings, shape)
    container["securityContext"] = {**UNPRIVILEGED, "readOnlyRootFilesystem": read_only_root}
    # What a dying worker says last stands in the pod's status, where `status` finds it.
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    container["volumeMounts"] = [
        {"name": "job", "mountPath": CONFIG_DIR, "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
        {"name": "scratch", "mountPath": SCRATCH},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        *(_mount(index, volume) for index, volume in enumerate(settings.all_volumes)),
    ]
    return container


def _environment(settings: Kubernetes) -> list[Manifest]:
    cache = settings.model_cache.path if settings.model_cache else f"{SCRATCH}/huggingface"
    plain = {
        "HOME": SCRATCH,
        # The user's number has no name in the image, and torch asks for one.
        "USER": "batchwright",
        "XDG_CACHE_HOME": f"{SCRATCH}/cache",
        "HF_HOME": cache,
        **settings.env,
    }
    found: list[Manifest] = [{"name": name, "value": value} for name, value in plain.items()]
    for name, reference in settings.secret_env.items():
        secret, _, key = reference.partition("/")
        found.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
    return found


def _resources(settings: Kubernetes, shape: PodShape) -> Manifest:
    """Limits that are the requests: such pods are the last to be evicted."""
    wanted = {
        "cpu": shape.cpu,
        "memory": shape.memory,
    }
    if settings.ephemeral_storage:
        wanted["ephemeral-storage"] = settings.ephemeral_storage
    if shape.gpus and not settings.dra:
        wanted[settings.gpu_resource] = str(shape.gpus)
    if shape.gpus and settings.hami:
        for name, value in (
            ("nvidia.com/gpumem", settings.hami.memory_mb),
            ("nvidia.com/gpumem-percentage", settings.hami.memory_percent),
            ("nvidia.com/gpucores", settings.hami.cores_percent),
        ):
            if value is not None:
                wanted[name] = str(value)
    found: Manifest = {"limits": wanted, "requests": dict(wanted)}
    if shape.gpus and settings.dra:
        found["claims"] = [{"name": "gpu"}]
    return found


def _volumes(workload: Workload, shape: PodShape) -> list[Manifest]:
    settings = workload.settings
    disk = {"sizeLimit": settings.ephemeral_storage} if settings.ephemeral_storage else {}
    return [
        {"name": "job", "configMap": {"name": f"{workload.name}-job"}},
        # The default of 64 MB kills engines that span several cards.
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shape.shm}},
        {"name": "scratch", "emptyDir": dict(disk)},
        {"name": "tmp", "emptyDir": dict(disk)},
        *(_volume(index, one) for index, one in enumerate(settings.all_volumes)),
    ]


def _volume(index: int, volume: Volume) -> Manifest:
    name = f"volume-{index}"
    if volume.claim is not None:
        claim: Manifest = {"claimName": volume.claim}
        if volume.read_only:
            claim["readOnly"] = True
        return {"name": name, "persistentVolumeClaim": claim}
    if volume.image is not None:
        return {"name": name, "image": {"reference": volume.image, "pullPolicy": "IfNotPresent"}}
    if volume.secret is not None:
        return {"name": name, "secret": {"secretName": volume.secret}}
    if volume.config_map is not None:
        return {"name": name, "configMap": {"name": volume.config_map}}
    return {"name": name, "hostPath": {"path": volume.host_path, "type": "Directory"}}


def _mount(index: int, volume: Volume) -> Manifest:
    mount: Manifest = {"name": f"volume-{index}", "mountPath": volume.path}
    if volume.is_read_only:
        mount["readOnly"] = True
    return mount
