"""Shapes of pods, Jobs and events as clusters show them, shortened to what matters."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def pod(name: str, index: int = 0, **status: Any) -> Object:
    """A pod of the job `reviews`."""
    return {
        "metadata": {
            "name": name,
            "namespace": "batch",
            "labels": {
                "batchwright/job": "reviews", "batchwright/role": "worker",
                "batch.kubernetes.io/job-completion-index": str(index),
            },
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
        },
        "spec": {"nodeName": "node-a", "containers": [{"name": "batchwright"}]},
        "status": status,
    }  # fmt: skip


def box(
    restarts: int = 0, *, ready: bool = False, last: Object | None = None, **state: Any
) -> list[Object]:
    """Container statuses: `running`, `waiting` or `terminated`."""
    return [
        {"name": "batchwright", "ready": ready, "restartCount": restarts, "state": state,
         "lastState": last or {}, "image": "registry.example/batchwright:0.1.0"}
    ]  # fmt: skip


def event(
    kind: str, name: str, reason: str, message: str, at: str = "2026-11-30T10:00:00Z", **more: Any
) -> Object:
    """An event about an object."""
    return {
        "metadata": {"name": f"{name}.{abs(hash((reason, at))):x}", "namespace": "batch"},
        "involvedObject": {"kind": kind, "name": name, "namespace": "batch"},
        "type": "Warning", "reason": reason, "message": message, "lastTimestamp": at, **more,
    }  # fmt: skip


def unscheduled(name: str, message: str, index: int = 0) -> Object:
    """A pod that the scheduler has no node for."""
    return pod(
        name, index, phase="Pending",
        conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}],
    )  # fmt: skip


def ended(name: str, code: int, log: str = "", reason: str = "Error", index: int = 0) -> Object:
    """A pod whose container ended badly."""
    terminated = {
        "exitCode": code, "reason": reason, "message": log, "finishedAt": "2026-11-30T10:00:00Z",
    }  # fmt: skip
    return pod(name, index, phase="Failed", containerStatuses=box(terminated=terminated))


def disrupted(name: str, reason: str, message: str = "", index: int = 0, **status: Any) -> Object:
    """A pod that lost its node or its place."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    return pod(
        name, index, phase="Failed", conditions=[condition],
        containerStatuses=box(terminated={"exitCode": 137, "reason": "Error"}), **status,
    )  # fmt: skip


def job(
    name: str = "reviews", *, suspend: bool = False, queue: str | None = None, **status: Any
) -> Object:
    """An Indexed Job."""
    labels = {"batchwright/job": "reviews"}
    if queue:
        labels["kueue.x-k8s.io/queue-name"] = queue
    return {
        "kind": "Job",
        "metadata": {"name": name, "namespace": "batch", "labels": labels},
        "spec": {"suspend": suspend, "completions": 3},
        "status": status,
    }


def condition(kind: str, reason: str = "", message: str = "") -> Object:
    """A condition that holds."""
    return {"type": kind, "status": "True", "reason": reason, "message": message}
