"""The Indexed Job: pods without a head, each of which can finish any chunk."""

from __future__ import annotations

from typing import Any

from batchwright.k8s.pod import CONTAINER, RUN_DIR, Manifest, metadata, pod_template, with_metrics
from batchwright.k8s.workload import JOB_FILE, PodGroup, Workload

# Of `core.errors`: 2 and 3 say that the job is wrong, whatever pod runs it; 4 that it is finished
# with too many failed rows, which another pod would find again; 75 that it can go on.
JOB_IS_WRONG = [2, 3]
MANY_FAILED = 4
CAN_GO_ON = 75


def indexed_jobs(workload: Workload) -> list[Manifest]:
    """One Job for each group of nodes; all claim chunks from the same run directory."""
    return [_job(workload, group) for group in workload.groups]


def job_name(workload: Workload, group: PodGroup) -> str:
    """Name of a group's Job."""
    return f"{workload.name}-{group.name}" if group.name else workload.name


def main_metadata(workload: Workload, name: str, least: int | None = None) -> Manifest:
    """Metadata of an object that a queue admits."""
    settings = workload.settings
    head = metadata(workload, name, annotations={RUN_DIR: workload.run_dir})
    if settings.queue:
        head["labels"]["kueue.x-k8s.io/queue-name"] = settings.queue
    if settings.queue_priority:
        head["labels"]["kueue.x-k8s.io/priority-class"] = settings.queue_priority
    if settings.queue and least is not None:
        head["annotations"]["kueue.x-k8s.io/job-min-parallelism"] = str(least)
    return head


def failure_policy() -> Manifest:
    """What is the job's fault, what is nobody's, and what may be tried again."""

    def on_exit(codes: list[int]) -> dict[str, Any]:
        return {"containerName": CONTAINER, "operator": "In", "values": codes}

    return {
        "rules": [
            {"action": "FailJob", "onExitCodes": on_exit(JOB_IS_WRONG)},
            {"action": "FailIndex", "onExitCodes": on_exit([MANY_FAILED])},
            {"action": "Ignore", "onExitCodes": on_exit([CAN_GO_ON])},
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        ]
    }  # fmt: skip


def _job(workload: Workload, group: PodGroup) -> Manifest:
    settings = workload.settings
    least = group.least if group.least < group.replicas else None
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": main_metadata(workload, job_name(workload, group), least),
        "spec": {
            "completionMode": "Indexed",
            "completions": group.replicas,
            "parallelism": group.replicas,
            "backoffLimitPerIndex": settings.retries,
            "podFailurePolicy": failure_policy(),
            "activeDeadlineSeconds": deadline_s(workload),
            "ttlSecondsAfterFinished": workload.ttl_s,
            "template": with_metrics(workload, _worker(workload, group)),
        },
    }


def _worker(workload: Workload, group: PodGroup) -> Manifest:
    return pod_template(
        workload,
        group,
        ["batchwright", "worker", JOB_FILE],
        role="worker",
        read_only_root=workload.settings.read_only_root,
    )


def deadline_s(workload: Workload) -> int:
    """When the cluster ends the job, come what may."""
    return max(1, round(workload.settings.deadline_hours * 3600))
