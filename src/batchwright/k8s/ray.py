"""Ray on Kubernetes: a RayJob for KubeRay, or plain Deployments where that is not installed."""

from __future__ import annotations

from batchwright.k8s.indexed import deadline_s, failure_policy, job_name, main_metadata
from batchwright.k8s.pod import (
    JOB_LABEL,
    ROLE_LABEL,
    SMALL,
    TINY,
    UNPRIVILEGED,
    Manifest,
    labels,
    metadata,
    pod_template,
    with_metrics,
)
from batchwright.k8s.workload import JOB_FILE, PodGroup, Workload

GCS_PORT = 6379
DASHBOARD_PORT = 8265

_AUTH_MODE = "RAY_AUTH_MODE"
_AUTH_TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105

# What each node of Ray, and its head, say of themselves: by port and path.
_NODE_HEALTH = "52365/api/local_raylet_healthz"
_HEAD_HEALTH = f"{DASHBOARD_PORT}/api/gcs_healthz"

# No proxy is asked, whatever the environment says: the answer comes from this very pod.
_ASK = """\
import http.client, sys
for place in sys.argv[1:]:
    port, _, path = place.partition("/")
    line = http.client.HTTPConnection("localhost", int(port), timeout=4)
    line.request("GET", "/" + path)
    if b"success" not in line.getresponse().read():
        sys.exit(1)
"""

# A run refuses a cluster without room for one engine, and the driver is up long before the nodes
# with cards are: head, driver and one worker make three.
_WAIT_FOR_A_WORKER = (
    "python3 -c \"import ray, time; ray.init('auto', logging_level='error'); "
    "[time.sleep(2) for _ in iter(lambda: sum(node['Alive'] for node in ray.nodes()) < 3, False)]\""
)

_RUN = ["batchwright", "run", JOB_FILE]


def ray_job(workload: Workload) -> Manifest:
    """A RayJob. Each of its retries is a new cluster, which goes on from the run directory."""
    settings = workload.settings
    elastic = any(group.least < group.most for group in workload.groups)
    cluster: Manifest = {
        "rayVersion": settings.ray_version,
        # Whoever reaches an open head runs what he likes with the pods' secrets. KubeRay makes a
        # token for each cluster, and gives it to all of its pods.
        "authOptions": {"mode": "token"},
    }
    if elastic:
        cluster["enableInTreeAutoscaling"] = True
        # KubeRay adds the autoscaler to the head's pod, and gives it no manners of its own.
        cluster["autoscalerOptions"] = {"securityContext": dict(UNPRIVILEGED)}
    cluster["headGroupSpec"] = {
        # The head computes nothing: where it runs must not depend on cards.
        "rayStartParams": {"dashboard-host": "0.0.0.0", "num-cpus": "0", "num-gpus": "0"},  # noqa: S104
        # What drives the run is started on the head.
        "template": with_metrics(
            workload,
            _probed(pod_template(
                workload, None, [], role="head", shape=SMALL, restart=None, read_only_root=False,
                token=elastic,  # it tells the API server how many pods there shall be
            ), _NODE_HEALTH, _HEAD_HEALTH),
        ),
    }  # fmt: skip
    cluster["workerGroupSpecs"] = [_worker_group(workload, group) for group in workload.groups]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": main_metadata(workload, workload.name),
        "spec": {
            "entrypoint": " ".join(_RUN),
            "submissionMode": "K8sJobMode",
            "backoffLimit": settings.retries,
            # A head that is lost leaves a RayJob running for ever otherwise.
            "activeDeadlineSeconds": deadline_s(workload),
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": workload.ttl_s,
            # Without one of ours KubeRay makes a pod that strict namespaces refuse.
            "submitterPodTemplate": pod_template(
                workload, None, [], role="driver", shape=TINY, read_only_root=False
            ),
            "rayClusterSpec": cluster,
        },
    }


def _worker_group(workload: Workload, group: PodGroup) -> Manifest:
    return {
        "groupName": group.name or "workers",
        "replicas": group.replicas,
        "minReplicas": group.least,
        "maxReplicas": group.most,
        "rayStartParams": {"num-gpus": str(workload.shape.gpus)},
        "template": _probed(
            pod_template(workload, group, [], role="worker", restart=None, read_only_root=False),
            _NODE_HEALTH,
        ),
    }


def _probed(template: Manifest, *places: str) -> Manifest:
    """The pod with probes of ours; those that KubeRay would add need wget, which images may lack."""
    words = ["python3", "-c", _ASK, *places]
    often = {"exec": {"command": words}, "periodSeconds": 10, "timeoutSeconds": 10}
    container = template["spec"]["containers"][0]
    container["readinessProbe"] = {**often, "initialDelaySeconds": 10, "failureThreshold": 10}
    container["livenessProbe"] = {**often, "initialDelaySeconds": 30, "failureThreshold": 60}
    return template


def ray_deployment(workload: Workload) -> list[Manifest]:
    """A head and workers as Deployments, a Service, and a Job that joins them and runs the job.

    The Job's pod is itself a node of the cluster, without cards: so its exit code is the run's own,
    and the policy on failures is the one of the Indexed Job.
    """
    address = f"{workload.name}-head:{GCS_PORT}"
    head = pod_template(
        workload, None, _shell(
            f"exec ray start --head --port={GCS_PORT} --dashboard-host=0.0.0.0 "
            f"--dashboard-port={DASHBOARD_PORT} --num-cpus=0 --num-gpus=0 --block"
        ),
        role="head", shape=SMALL, restart="Always", read_only_root=False,
    )  # fmt: skip
    container = head["spec"]["containers"][0]
    container["ports"] = [
        {"name": "gcs", "containerPort": GCS_PORT},
        {"name": "dashboard", "containerPort": DASHBOARD_PORT},
    ]
    container["readinessProbe"] = {
        "exec": {"command": ["ray", "health-check", "--address", f"127.0.0.1:{GCS_PORT}"]},
        "periodSeconds": 10,
        "timeoutSeconds": 10,
        "failureThreshold": 12,
    }
    found = [
        _service(workload),
        _deployment(workload, f"{workload.name}-head", "head", "", 1, head),
        *(_workers(workload, group, address) for group in workload.groups),
        _driver(workload, address),
    ]
    for manifest in found[1:]:
        _with_auth_mode(workload, manifest["spec"]["template"])
    return found


def _with_auth_mode(workload: Workload, template: Manifest) -> None:
    """Say whether Ray wants a token: from 2.61 on it does unless told, and nobody makes one here."""
    settings = workload.settings
    if _AUTH_MODE in settings.env or _AUTH_MODE in settings.secret_env:
        return
    mode = "token" if _AUTH_TOKEN in settings.secret_env else "disabled"
    template["spec"]["containers"][0]["env"].append({"name": _AUTH_MODE, "value": mode})


def _workers(workload: Workload, group: PodGroup, address: str) -> Manifest:
    template = pod_template(
        workload, group,
        _shell(
            f"{_wait(address)}; exec ray start --address={address} "
            f"--num-gpus={workload.shape.gpus} --block"
        ),
        role="worker", restart="Always", read_only_root=False,
    )  # fmt: skip
    name = f"{job_name(workload, group)}-worker"
    return _deployment(workload, name, "worker", group.name, group.replicas, template)


def _driver(workload: Workload, address: str) -> Manifest:
    template = with_metrics(workload, pod_template(
        workload, None,
        _shell(
            f"{_wait(address)}; ray start --address={address} --num-cpus=0 --num-gpus=0 && "
            f"{_WAIT_FOR_A_WORKER} && exec {' '.join(_RUN)}"
        ),
        role="driver", shape=SMALL, read_only_root=False,
    ))  # fmt: skip
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": main_metadata(workload, workload.name),
        "spec": {
            "completionMode": "Indexed",
            "completions": 1,
            "parallelism": 1,
            "backoffLimitPerIndex": workload.settings.retries,
            "podFailurePolicy": failure_policy(),
            "activeDeadlineSeconds": deadline_s(workload),
            "ttlSecondsAfterFinished": workload.ttl_s,
            "template": template,
        },
    }


def _deployment(
    workload: Workload, name: str, role: str, group: str, replicas: int, template: Manifest
) -> Manifest:
    own = labels(workload, role, group)
    chosen = {key: value for key, value in own.items() if key.startswith("batchwright/")}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(workload, name),
        "spec": {
            "replicas": replicas,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": chosen},
            "template": template,
        },
    }


def _service(workload: Workload) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(workload, f"{workload.name}-head"),
        "spec": {
            # Ray opens ports of its own choice between pods, so the name must lead to the pod.
            "clusterIP": "None",
            "selector": {JOB_LABEL: workload.name, ROLE_LABEL: "head"},
            "ports": [
                {"name": "gcs", "port": GCS_PORT, "targetPort": "gcs"},
                {"name": "dashboard", "port": DASHBOARD_PORT, "targetPort": "dashboard"},
            ],
        },
    }


def _shell(line: str) -> list[str]:
    return ["/bin/sh", "-c", line]


def _wait(address: str) -> str:
    return f"until ray health-check --address {address} 2>/dev/null; do sleep 2; done"
