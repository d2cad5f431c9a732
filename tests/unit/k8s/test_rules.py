"""Mistakes in manifests: what schemas find, and what only the rules do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from batchwright.k8s.rules import advice_of, problems_of
from batchwright.k8s.schema import schema_problems
from tests.support.kubernetes_jobs import EXAMPLES, one, rendered

Manifest = dict[str, Any]


def all_problems(*manifests: Manifest) -> list[str]:
    return [
        str(problem) for problem in (*schema_problems(manifests, "1.34"), *problems_of(manifests))
    ]


@pytest.fixture(scope="module")
def good_job() -> Manifest:
    return one(rendered(EXAMPLES / "tensor-parallel.yaml"), "Job")


@pytest.fixture(scope="module")
def good_rayjob() -> Manifest:
    return one(rendered(EXAMPLES / "ray-two-groups.yaml"), "RayJob")


def put(dotted: str, value: Any) -> Callable[[Manifest], None]:
    """A change of one place; `del` as a value takes it out."""

    def change(manifest: Manifest) -> None:
        *steps, last = dotted.split(".")
        place: Any = manifest
        for step in steps:
            place = place[int(step)] if step.isdigit() else place[step]
        if value is del_:
            del place[last]
        else:
            place[int(last) if last.isdigit() else last] = value

    return change


del_ = object()
POD = "spec.template.spec"
BOX = f"{POD}.containers.0"
POLICY = "spec.podFailurePolicy.rules.0"

JOB_MISTAKES: list[tuple[str, Callable[[Manifest], None], str]] = [
    ("restart policy", put(f"{POD}.restartPolicy", "Always"), f"{POD}.restartPolicy: Always is neither"),
    ("limit per index without indexes", put("spec.completionMode", "NonIndexed"), "spec.backoffLimitPerIndex: it needs"),
    ("indexes without completions", put("spec.completions", del_), "spec.completions: an Indexed Job needs it"),
    ("mode typo", put("spec.completionMode", "indexed"), "spec.completionMode: indexed is neither"),
    ("action typo", put(f"{POLICY}.action", "FailJobs"), f"{POLICY}.action: FailJobs is none of"),
    ("exit code 0", put(f"{POLICY}.onExitCodes.values", [0, 2]), f"{POLICY}.onExitCodes.values: 0 is no failure"),
    ("exit codes unordered", put(f"{POLICY}.onExitCodes.values", [3, 2]), f"{POLICY}.onExitCodes.values: they must be in order"),
    ("other container", put(f"{POLICY}.onExitCodes.containerName", "x"), f"{POLICY}.onExitCodes.containerName: there is no"),
    ("pull policy", put(f"{BOX}.imagePullPolicy", "Allways"), f"{BOX}.imagePullPolicy: Allways"),
    ("quantity", put(f"{BOX}.resources.limits.memory", "4 GB"), f"{BOX}.resources.limits.memory: '4 GB' is not"),
    ("cards asked and limited", put(f"{BOX}.resources.requests.nvidia~com/gpu", "2"), "for cards the request must be the limit"),
    ("half a card", put(f"{BOX}.resources.limits.nvidia~com/gpu", "0.5"), "cards are whole"),
    ("more than the limit", put(f"{BOX}.resources.requests.cpu", "999"), f"{BOX}.resources.requests.cpu: it is more"),
    ("name with capitals", put("metadata.name", "Reviews"), "metadata.name: 'Reviews' is no name"),
    ("name too long", put("metadata.name", "r" * 60), "metadata.name: it has more than 52"),
    ("label too long", put("metadata.labels", {"a": "x" * 64}), "metadata.labels.a: "),
    ("mount without volume", put(f"{BOX}.volumeMounts.0.name", "nowhere"), f"{BOX}.volumeMounts.0.name: there is no volume"),
    ("negative deadline", put("spec.activeDeadlineSeconds", -5), "spec.activeDeadlineSeconds: it must be"),
    ("negative ttl", put("spec.ttlSecondsAfterFinished", -5), "spec.ttlSecondsAfterFinished: it cannot"),
    ("claim that is not there", put(f"{BOX}.resources.claims", [{"name": "gpu"}]), "no resource claim gpu"),
    ("root after all", put(f"{POD}.securityContext.runAsUser", 0), "runAsUser is 0"),
    ("taint effect", put(f"{POD}.tolerations.0.effect", "NoShedule"), "NoShedule is not"),
    ("unknown field", put("spec.parallelsim", 3), "parallelsim"),
    ("wrong type", put("spec.parallelism", "three"), "spec.parallelism"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), [pytest.param(c, s, id=n) for n, c, s in JOB_MISTAKES])
def test_a_mistake_in_a_job_is_found(
    change: Callable[[Manifest], None], said: str, good_job: Manifest
) -> None:
    manifest = yaml.safe_load(yaml.safe_dump(good_job).replace("nvidia.com/", "nvidia~com/"))
    change(manifest)
    manifest = yaml.safe_load(yaml.safe_dump(manifest).replace("nvidia~com/", "nvidia.com/"))
    # Schemas are slow to load, and miss nearly all of these.
    problems = [str(problem) for problem in problems_of([manifest])]
    if not any(said in problem for problem in problems):
        problems = all_problems(manifest)
    assert any(said in problem for problem in problems), problems


def test_schemas_alone_would_miss_most_of_them(good_job: Manifest) -> None:
    """Why there are rules at all."""
    assert schema_problems([good_job], "1.34") == []
    manifest = copy.deepcopy(good_job)
    manifest["spec"]["completionMode"] = "indexed"
    manifest["spec"]["template"]["spec"]["restartPolicy"] = "Always"
    assert schema_problems([manifest], "1.34") == []


def test_a_good_job_has_no_problems(good_job: Manifest, good_rayjob: Manifest) -> None:
    assert all_problems(good_job, good_rayjob) == []
    assert advice_of([good_job, good_rayjob]) == []


RAY_MISTAKES: list[tuple[str, Callable[[Manifest], None], str]] = [
    ("mode", put("spec.submissionMode", "K8SJobMode"), "spec.submissionMode: "),
    ("no deadline", put("spec.activeDeadlineSeconds", del_), "spec.activeDeadlineSeconds: it is missing"),
    ("keeps the cluster", put("spec.shutdownAfterJobFinishes", False), "spec.shutdownAfterJobFinishes: without it"),
    ("ttl alone", put("spec.shutdownAfterJobFinishes", False), "spec.ttlSecondsAfterFinished: it needs"),
    ("both ways to end", put("spec.deletionStrategy", {"deletionRules": [{}]}), "spec.deletionStrategy: "),
    ("no cluster", put("spec.rayClusterSpec", del_), "spec: give one of"),
    ("pull policy", put("spec.rayClusterSpec.workerGroupSpecs.0.template.spec.containers.0.imagePullPolicy", "no"), "workerGroupSpecs.0.template.spec.containers.0.imagePullPolicy: no is"),
    ("size", put("spec.rayClusterSpec.workerGroupSpecs.1.replicas", 99), "99 is not between"),
    ("queue", put("metadata.labels", {"kueue.x-k8s.io/queue-name": "q"}), "Kueue admits a fixed size"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), [pytest.param(c, s, id=n) for n, c, s in RAY_MISTAKES])
def test_a_mistake_in_a_rayjob_is_found(
    change: Callable[[Manifest], None], said: str, good_rayjob: Manifest
) -> None:
    manifest = copy.deepcopy(good_rayjob)
    change(manifest)
    problems = [str(problem) for problem in problems_of([manifest])]
    assert any(said in problem for problem in problems), problems


def test_suspend_needs_a_cluster_that_is_shut_down(good_rayjob: Manifest) -> None:
    manifest = copy.deepcopy(good_rayjob)
    manifest["spec"] |= {"suspend": True, "shutdownAfterJobFinishes": False}
    assert any("spec.suspend: " in str(problem) for problem in problems_of([manifest]))


def job_of(pod: str, **spec: Any) -> Manifest:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "w"},
        "spec": {**spec, "template": {"spec": yaml.safe_load(pod)}},
    }


WORKER = """
restartPolicy: Never
containers:
- {name: worker, image: "registry.example/w:1", command: [w, --shard, $(JOB_COMPLETION_INDEX)]}
"""


def test_an_index_that_is_not_there_is_found() -> None:
    """A worker that reads an index of a Job without indexes would take shard nothing."""
    assert any(
        "JOB_COMPLETION_INDEX" in problem
        for problem in all_problems(job_of(WORKER, parallelism=3, completions=3))
    )
    indexed = job_of(WORKER, completionMode="Indexed", parallelism=3)
    assert any("completions: an Indexed Job" in problem for problem in all_problems(indexed))
    whole = job_of(WORKER, completionMode="Indexed", parallelism=3, completions=3)
    assert all_problems(whole) == []


def tensor_parallel_pod(volumes: str, mounts: str, limits: str = "memory: 32Gi") -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "tp"},
        "spec": yaml.safe_load(
            f"{{containers: [{{name: v, image: 'r.example/v:1', args: [--tensor-parallel-size, '2'], "
            f"resources: {{limits: {{nvidia.com/gpu: '2', {limits}}}}}, volumeMounts: {mounts}}}], "
            f"volumes: {volumes}}}"
        ),
    }


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        (tensor_parallel_pod("[]", "[]"), "64 MB"),
        (tensor_parallel_pod("[{name: s, emptyDir: {sizeLimit: 8Gi}}]", "[{name: s, mountPath: /shm}]"), "64 MB"),
        (tensor_parallel_pod("[{name: s, emptyDir: {sizeLimit: 8Gi}}]", "[{name: s, mountPath: /dev/shm}]"), "medium: Memory"),
        (tensor_parallel_pod("[{name: s, emptyDir: {medium: Memory, sizeLimit: 32Gi}}]", "[{name: s, mountPath: /dev/shm}]"), "takes all of it"),
    ],
    ids=["none", "wrong path", "on disk", "as large as the memory"],
)  # fmt: skip
def test_shared_memory_that_would_kill_an_engine_is_found(pod: Manifest, said: str) -> None:
    assert any(said in problem for problem in all_problems(pod)), all_problems(pod)


def test_shared_memory_that_is_right_is_not_blamed() -> None:
    pod = tensor_parallel_pod(
        "[{name: s, emptyDir: {medium: Memory, sizeLimit: 8Gi}}]",
        "[{name: s, mountPath: /dev/shm}]",
    )
    assert all_problems(pod) == []


def test_results_on_a_pods_own_disk_are_found() -> None:
    pod = """
    restartPolicy: Never
    containers: [{name: w, image: "r.example/w:1", volumeMounts: [{name: out, mountPath: /out}]}]
    volumes: [{name: out, emptyDir: {}}]
    """
    problems = all_problems(job_of(pod, completionMode="Indexed", completions=4, backoffLimit=2))
    assert any("/out is an emptyDir" in problem for problem in problems)
    (advice,) = advice_of([job_of(pod, backoffLimit=2)])
    assert "each eviction counts as a failure" in advice.message


def test_a_deployment_must_choose_its_own_pods() -> None:
    found = rendered(EXAMPLES / "one-gpu.yaml", mode="ray-deployment")
    head = copy.deepcopy(next(m for m in found if m["kind"] == "Deployment"))
    head["spec"]["selector"]["matchLabels"]["batchwright/role"] = "else"
    assert any("matchLabels" in problem for problem in all_problems(head))


def test_what_a_pod_refers_to_is_part_of_the_set() -> None:
    found = copy.deepcopy(rendered(EXAMPLES / "dra.yaml"))
    one(found, "ResourceClaimTemplate")["metadata"]["name"] = "other"
    assert any("there is no ResourceClaimTemplate" in str(p) for p in problems_of(found))


def test_the_flat_shape_of_a_claim_is_refused() -> None:
    template = copy.deepcopy(one(rendered(EXAMPLES / "dra.yaml"), "ResourceClaimTemplate"))
    template["spec"]["spec"]["devices"]["requests"] = [{"name": "gpu", "deviceClassName": "g"}]
    assert any("exactly" in str(problem) for problem in problems_of([template]))


def test_an_object_that_the_version_does_not_know_is_found() -> None:
    template = one(rendered(EXAMPLES / "dra.yaml"), "ResourceClaimTemplate")
    assert any("not in Kubernetes 1.30" in str(p) for p in schema_problems([template], "1.30"))
