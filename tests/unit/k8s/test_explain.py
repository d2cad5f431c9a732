"""What pods and Jobs are held up by, in words."""

from __future__ import annotations

from typing import Any

import pytest

from batchwright.k8s.explain import pod_state
from batchwright.k8s.standing import indexes, job_state, standing
from batchwright.tokens.files import not_reachable
from tests.support import recorded_pods as recorded

NO_CARDS = (
    "0/12 nodes are available: 4 Insufficient nvidia.com/gpu, 8 node(s) didn't match Pod's node "
    "affinity/selector. preemption: 0/12 nodes are available: 12 Preemption is not helpful for scheduling."
)
NO_NODE = (
    "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. preemption: 0/3 "
    "nodes are available: 3 Preemption is not helpful for scheduling."
)
TAINTED = (
    "0/5 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, "
    "4 node(s) had untolerated taint {spot: true}."
)

PENDING: list[tuple[str, Any, list[Any], str]] = [
    ("cards taken", recorded.unscheduled("p", NO_CARDS), [],
     "no node takes it: 4 nodes have too few free cards (nvidia.com/gpu); 8 nodes are not of the wanted kind"),
    ("no such node", recorded.unscheduled("p", NO_NODE), [], "no node of that kind: 3 nodes"),
    ("taints", recorded.unscheduled("p", TAINTED), [],
     "1 nodes have the taint node-role.kubernetes.io/control-plane (kubernetes.tolerations); 4 nodes have the taint spot: true"),
    ("event only", recorded.pod("p", phase="Pending"),
     [recorded.event("Pod", "p", "FailedScheduling", "0/2 nodes are available: 2 Insufficient memory.")],
     "no node takes it: 2 nodes have too little free memory (kubernetes.memory_per_gpu)"),
    ("no volume", recorded.unscheduled("p", 'persistentvolumeclaim "models" not found'), [], "there is no claim models"),
    ("claims of devices", recorded.unscheduled("p", "0/3 nodes are available: 3 cannot allocate all claims."), [],
     "3 nodes have no free device for the claim"),
    ("image not found", recorded.pod("p", phase="Pending", containerStatuses=recorded.box(
        waiting={"reason": "ErrImagePull", "message": 'failed to pull "registry.example/batchwright:9": not found'})), [],
     "image not found: "),
    ("image refused", recorded.pod("p", phase="Pending", containerStatuses=recorded.box(
        waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling image: 401 Unauthorized"})), [],
     "kubernetes.image_pull_secrets"),
    ("secret missing", recorded.pod("p", phase="Pending", containerStatuses=recorded.box(
        waiting={"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'})), [],
     'its container cannot be made: secret "hub" not found'),
    ("mount", recorded.pod("p", phase="Pending", containerStatuses=recorded.box(waiting={"reason": "ContainerCreating"})),
     [recorded.event("Pod", "p", "FailedMount", "MountVolume.SetUp failed for volume \"job\"")], "a volume cannot be mounted"),
    ("being made", recorded.pod("p", phase="Pending", containerStatuses=recorded.box(waiting={"reason": "ContainerCreating"})),
     [], "its container is being made"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("pod", "events", "said"), [pytest.param(p, e, s, id=n) for n, p, e, s in PENDING]
)
def test_why_a_pod_waits(pod: Any, events: list[Any], said: str) -> None:
    state = pod_state(pod, events)
    assert state.state == "pending"
    assert said in state.why


LOG = "loading the model\nerror: the engine cannot be started: CUDA out of memory\n  Lower engine.options.gpu_memory_utilization.\n"

ENDED: list[tuple[str, Any, str, str]] = [
    ("memory", recorded.ended("p", 137, reason="OOMKilled"), "failed", "killed for memory: raise kubernetes.memory_per_gpu"),
    ("engine", recorded.ended("p", 75, LOG), "failed",
     "the engine failed to start or died: the engine cannot be started: CUDA out of memory Lower engine.options"),
    ("hub", recorded.ended("p", 75, f"error: {not_reachable('a/b', ConnectionError('no route'))}\n"), "failed",
     "the model cannot be fetched now, and another pod will try: a/b is no folder here, and the hub does not give it: no route"),
    ("stopped", recorded.ended("p", 75, "stopped: stopped"), "stopped", "it stopped and can go on"),
    ("job file", recorded.ended("p", 2, "error: unknown key runn"), "failed", "the job file is wrong: unknown key runn"),
    ("input", recorded.ended("p", 3, "error: no rows in the input"), "failed", "the input cannot be used"),
    ("no command", recorded.ended("p", 127), "failed", "the image has no such command"),
    ("other", recorded.ended("p", 9, "Killed"), "failed", "exit code 9: Killed"),
    ("evicted", recorded.pod("p", phase="Failed", reason="Evicted", message="The node was low on resource: memory."), "stopped",
     "evicted: The node was low on resource: memory."),
    ("evicted by the API", recorded.disrupted("p", "EvictionByEvictionAPI"), "stopped", "its node is being emptied"),
    ("preempted", recorded.disrupted("p", "PreemptionByScheduler"), "stopped", "higher priority"),
    ("node lost", recorded.disrupted("p", "DeletionByTaintManager"), "stopped", "node was lost"),
    ("spot", recorded.disrupted("p", "TerminationByKubelet"), "stopped", "its node ended it"),
    ("deadline", recorded.pod("p", phase="Failed", reason="DeadlineExceeded"), "failed", "its time was up"),
    ("again and again", recorded.pod("p", phase="Running", containerStatuses=recorded.box(
        4, waiting={"reason": "CrashLoopBackOff"}, last={"terminated": {"exitCode": 1, "message": "error: no head"}})), "failed",
     "it ends again and again: exit code 1: no head"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("pod", "state", "said"), [pytest.param(p, st, s, id=n) for n, p, st, s in ENDED]
)
def test_why_a_pod_ended(pod: Any, state: str, said: str) -> None:
    found = pod_state(pod, [])
    assert (found.state, found.index) == (state, 0)
    assert said in found.why


def test_pods_that_are_well_need_no_words() -> None:
    running = recorded.pod(
        "a", 2, phase="Running", containerStatuses=recorded.box(ready=True, running={})
    )
    done = recorded.pod("b", phase="Succeeded")
    assert [(pod_state(one, []).state, pod_state(one, []).why) for one in (running, done)] == [
        ("running", ""), ("done", ""),
    ]  # fmt: skip
    assert pod_state(running, []).index == 2


QUOTA = (
    'Error creating: pods "reviews-0-x7" is forbidden: exceeded quota: gpus, requested: '
    "requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8"
)

JOBS: list[tuple[str, Any, list[Any], str, str]] = [
    ("quota", recorded.job(), [recorded.event("Job", "reviews", "FailedCreate", QUOTA)], "waiting",
     "quota exceeded: gpus allows requests.nvidia.com/gpu=8, requests.nvidia.com/gpu=8 is used"),
    ("account", recorded.job(), [recorded.event("Job", "reviews", "FailedCreate",
     'Error creating: pods "r" is forbidden: error looking up service account batch/reader: serviceaccount "reader" not found')],
     "waiting", "there is no ServiceAccount reader"),
    ("trouble that is over", recorded.job(active=3), [
        recorded.event("Job", "reviews", "FailedCreate", QUOTA, "2026-11-30T10:00:00Z"),
        recorded.event("Job", "reviews", "SuccessfulCreate", "Created pod", "2026-11-30T10:05:00Z")], "running", ""),
    ("queue", recorded.job(suspend=True, queue="spot"), [], "waiting", "the queue spot has not admitted it yet"),
    ("deadline", recorded.job(conditions=[recorded.condition("Failed", "DeadlineExceeded", "x")]), [], "failed", "its time was up"),
    ("policy", recorded.job(conditions=[recorded.condition("Failed", "PodFailurePolicy",
     "Container batchwright for pod batch/reviews-0-x failed with exit code 2 matching FailJob rule at index 0")]), [],
     "failed", "the job file is wrong"),
    ("indexes", recorded.job(failedIndexes="1,3-4", conditions=[recorded.condition("Failed", "FailedIndexes")]), [], "failed",
     "the others went on"),
    ("done", recorded.job(succeeded=3, conditions=[recorded.condition("SuccessCriteriaMet"), recorded.condition("Complete")]), [], "done", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("job", "events", "state", "said"), [pytest.param(*rest, id=name) for name, *rest in JOBS]
)
def test_where_a_job_stands(job: Any, events: list[Any], state: str, said: str) -> None:
    found = standing([job], [], events).jobs[0]
    assert found.state == state
    assert (said in found.why) if said else not found.why


def test_failed_indexes_are_told_apart() -> None:
    assert indexes("1,3-5,9") == (1, 3, 4, 5, 9)
    assert indexes("") == ()
    failed = job_state(recorded.job(failedIndexes="0,2"), [])
    assert failed.failed_indexes == (0, 2)


@pytest.mark.parametrize(
    ("status", "state", "said"),
    [
        ({"jobStatus": "RUNNING", "jobDeploymentStatus": "Running"}, "running", ""),
        ({"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Complete"}, "done", ""),
        ({"jobStatus": "FAILED", "jobDeploymentStatus": "Failed", "reason": "AppFailed", "message": "exit 75"}, "failed", "exit 75"),
        ({"jobDeploymentStatus": "Failed", "reason": "DeadlineExceeded"}, "failed", "its time was up"),
        ({"jobDeploymentStatus": "Initializing"}, "waiting", "being made"),
        ({}, "waiting", "is the operator installed"),
    ],
    ids=["running", "done", "failed", "deadline", "starting", "no operator"],
)  # fmt: skip
def test_where_a_rayjob_stands(status: dict[str, str], state: str, said: str) -> None:
    found = job_state({"kind": "RayJob", "metadata": {"name": "r"}, "status": status}, [])
    assert found.state == state
    assert said in found.why


def test_a_pod_that_is_being_removed_does_not_count_as_running() -> None:
    ending = recorded.pod(
        "p", phase="Running", containerStatuses=recorded.box(ready=True, running={})
    )
    assert pod_state(ending, []).state == "running"
    ending["metadata"]["deletionTimestamp"] = "2026-11-30T10:00:00Z"
    found = pod_state(ending, [])
    assert (found.state, found.why[:20]) == ("stopped", "it is being ended (f")
