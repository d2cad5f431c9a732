"""How a whole job stands in the cluster: its Jobs or RayJob, its pods, and what holds them up."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from batchwright.core.errors import JobError
from batchwright.k8s.explain import PodState, pod_state
from batchwright.k8s.pod import RUN_DIR
from batchwright.k8s.problems import Manifest


@dataclass(frozen=True, slots=True)
class JobState:
    """A Job or RayJob.

    Attributes:
        state: `running`, `waiting`, `done` or `failed`.
        failed_indexes: of an Indexed Job. Their rows are not lost: other pods take them.
    """

    kind: str
    name: str
    state: str
    why: str = ""
    failed_indexes: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Standing:
    """Everything that the cluster knows of a job."""

    jobs: tuple[JobState, ...]
    pods: tuple[PodState, ...]

    def counts(self) -> dict[str, int]:
        """Pods by state."""
        return dict(Counter(pod.state for pod in self.pods))

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "jobs": [job.as_json() for job in self.jobs],
            "pods": [pod.as_json() for pod in self.pods],
        }


def refuse_another(mains: Sequence[Manifest], run_dir: str) -> None:
    """Refuse a job of the same name that has another run directory: it is somebody else's.

    Raises:
        JobError: with both run directories.
    """
    for main in mains:
        other = (main["metadata"].get("annotations") or {}).get(RUN_DIR, run_dir)
        if other != run_dir:
            name = main["metadata"]["name"]
            raise JobError(
                f"{main['kind']} {name} in the cluster is another job: its run directory is {other}, "
                f"that of this file is {run_dir}",
                "Give this job a name of its own (name, or kubernetes.name); or use the other's job file.",
            )


def standing(
    mains: Sequence[Manifest], pods: Sequence[Manifest], events: Sequence[Manifest]
) -> Standing:
    """Join objects and events.

    Args:
        mains: the Jobs, or the RayJob.
        pods: all that belong to them.
        events: of the namespace.
    """
    about: dict[tuple[str, str], list[Manifest]] = {}
    for event in sorted(events, key=_when):
        about.setdefault(_object(event), []).append(event)
    return Standing(
        tuple(
            job_state(one, about.get((one.get("kind", ""), one["metadata"]["name"]), []))
            for one in mains
        ),
        tuple(
            sorted(
                (pod_state(pod, about.get(("Pod", pod["metadata"]["name"]), [])) for pod in pods),
                key=lambda pod: (pod.role, pod.group, pod.index or 0, pod.name),
            )
        ),
    )


def _when(event: Manifest) -> str:
    return str(
        event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp")
        or ""
    )


def _object(event: Manifest) -> tuple[str, str]:
    about = event.get("involvedObject") or event.get("regarding") or {}
    return str(about.get("kind", "")), str(about.get("name", ""))


def job_state(main: Manifest, events: Sequence[Manifest]) -> JobState:
    """Where a Job or RayJob stands."""
    name = main["metadata"]["name"]
    if main.get("kind") == "RayJob":
        return _rayjob_state(name, main.get("status") or {}, events)
    status = main.get("status") or {}
    failed = indexes(status.get("failedIndexes") or "")
    true = {one["type"]: one for one in status.get("conditions") or [] if one["status"] == "True"}
    if "Complete" in true:
        return JobState("Job", name, "done", failed_indexes=failed)
    for kind in ("Failed", "FailureTarget"):
        if kind in true:
            return JobState("Job", name, "failed", _failure(true[kind]), failed)
    if (main.get("spec") or {}).get("suspend"):
        return JobState("Job", name, "waiting", _suspended(main, events), failed)
    if not status.get("active"):
        return JobState("Job", name, "waiting", _cannot_create(events), failed)
    return JobState("Job", name, "running", _cannot_create(events), failed)


def indexes(text: str) -> tuple[int, ...]:
    """`1,3-5` as numbers."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def _failure(condition: Manifest) -> str:
    reason, message = condition.get("reason", ""), condition.get("message", "")
    if reason == "DeadlineExceeded":
        return "its time was up (kubernetes.deadline_hours): submitted again, it goes on"
    if reason == "FailedIndexes":
        return (
            "pods failed more often than kubernetes.retries, or more rows than run.max_failed (see "
            "the pods below); the others went on"
        )
    if reason == "PodFailurePolicy":
        code = re.search(r"exit code (\d+)", message)
        wrong = {"2": "the job file is wrong", "3": "the input cannot be used"}
        return f"{wrong.get(code[1], message)}: see the pod below" if code else message
    return f"{reason}: {message}"


def _suspended(main: Manifest, events: Sequence[Manifest]) -> str:
    queue = (main["metadata"].get("labels") or {}).get("kueue.x-k8s.io/queue-name")
    if queue is None:
        return "it is suspended"
    said = [event.get("message", "") for event in events if event.get("reason") in
            {"Suspended", "Pending", "Stopped", "CreatedWorkload", "QueueNotFound"}]  # fmt: skip
    return f"the queue {queue} has not admitted it yet" + (f": {said[-1]}" if said else "")


def _cannot_create(events: Sequence[Manifest]) -> str:
    """Pods that were never made leave a trace only at their Job; one made later ends the trouble."""
    for event in reversed(events):
        if event.get("reason") == "SuccessfulCreate":
            return ""
        if event.get("reason") == "FailedCreate":
            return _refused(event.get("message", ""))
    return ""


def _refused(message: str) -> str:
    quota = re.search(
        r"exceeded quota: (\S+), requested: (\S+), used: (\S+), limited: (\S+)", message
    )
    if quota:
        return f"quota exceeded: {quota[1].rstrip(',')} allows {quota[4]}, {quota[3].rstrip(',')} is used"
    account = re.search(r"error looking up service account \S+/([^:\s]+)", message)
    if account:
        return f"there is no ServiceAccount {account[1]} (kubernetes.service_account)"
    if "violates PodSecurity" in message:
        return f"the namespace's Pod Security refuses it: {message}"
    if "no PriorityClass" in message:
        return f"there is no such PriorityClass (kubernetes.priority_class): {message}"
    return f"pods cannot be created: {message}"


def _rayjob_state(name: str, status: Manifest, events: Sequence[Manifest]) -> JobState:
    job, deployed = status.get("jobStatus", ""), status.get("jobDeploymentStatus", "")
    why = status.get("message") or status.get("reason") or ""
    if job == "SUCCEEDED":
        return JobState("RayJob", name, "done")
    if deployed in {"Failed", "ValidationFailed"} or job in {"FAILED", "STOPPED"}:
        if status.get("reason") == "DeadlineExceeded":
            why = "its time was up (kubernetes.deadline_hours): submitted again, it goes on"
        return JobState("RayJob", name, "failed", why)
    if deployed == "Running" and job == "RUNNING":
        return JobState("RayJob", name, "running")
    words = {
        "": "KubeRay has not looked at it yet: is the operator installed?",
        "Initializing": "the Ray cluster is being made",
        "Suspended": "it is suspended",
        "Waiting": "the Ray cluster is up, the job is not submitted yet",
        "Retrying": "the last cluster failed, a new one is being made",
    }
    said = [event["message"] for event in events if event.get("type") == "Warning"]
    return JobState("RayJob", name, "waiting", said[-1] if said else words.get(deployed, why))
