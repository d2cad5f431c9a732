"""What is known before a job is sent: quota, nodes, claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchwright.config.load import load_job
from batchwright.core.errors import StorageError
from batchwright.k8s import preflight
from batchwright.k8s.workload import Workload, make_workload
from tests.support.kubernetes_jobs import EXAMPLES, job_file, rendered


def quota(**amounts: tuple[str, str]) -> dict[str, Any]:
    names = {name.replace("__", "."): pair for name, pair in amounts.items()}
    return {
        "metadata": {"name": "team"},
        "status": {
            "hard": {name: pair[0] for name, pair in names.items()},
            "used": {name: pair[1] for name, pair in names.items()},
        },
    }


def doubts_of(*quotas: dict[str, Any]) -> list[tuple[bool, str]]:
    pods = preflight.needed(rendered(EXAMPLES / "one-gpu.yaml"))
    return [(one.blocks, one.message) for one in preflight.quota_doubts(pods, quotas)]


def test_a_quota_with_room_raises_no_doubt() -> None:
    assert doubts_of(quota(pods=("50", "3"), limits__memory=("2Ti", "1Ti"))) == []


def test_a_quota_for_some_pods_lets_others_wait() -> None:
    gpus = {"metadata": {"name": "team"}, "status": {
        "hard": {"requests.nvidia.com/gpu": "8"}, "used": {"requests.nvidia.com/gpu": "5"}}}  # fmt: skip
    ((blocks, message),) = doubts_of(gpus)
    assert not blocks
    assert "all pods need 8, 3 of 8 is free" in message


def test_a_quota_for_no_pod_at_all_blocks() -> None:
    ((blocks, message),) = doubts_of(quota(limits__memory=("64Gi", "0")))
    assert blocks
    assert message.startswith("quota team: limits.memory: one pod needs 90Gi")


def test_a_quota_for_other_pods_does_not_count() -> None:
    job = rendered(EXAMPLES / "one-gpu.yaml")

    def blocks(priority_class: str | None = None, **spec: Any) -> bool:
        tiny = {**quota(pods=("0", "0")), "spec": spec}
        found = preflight.quota_doubts(preflight.needed(job), [tiny], priority_class)
        return any(doubt.blocks for doubt in found)

    def of(operator: str, *values: str) -> dict[str, Any]:
        one = {"scopeName": "PriorityClass", "operator": operator, "values": list(values)}
        return {"matchExpressions": [one]}

    assert blocks(scopes=["NotBestEffort", "NotTerminating"])
    assert not blocks(scopes=["BestEffort"])
    assert not blocks(scopes=["Terminating"])
    assert not blocks(scopeSelector=of("In", "high"))
    assert not blocks("low", scopeSelector=of("In", "high"))
    assert blocks("high", scopeSelector=of("In", "high"))
    assert blocks(scopeSelector=of("NotIn", "high"))
    assert not blocks(scopeSelector=of("Exists"))


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    return make_workload(
        load_job(job_file(tmp_path)), parallel=1, replicas=None, card_bytes=1 << 34
    )


def node(product: str, cards: int, *taints: dict[str, str], **more: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "n", "labels": {"nvidia.com/gpu.product": product}},
        "spec": {"taints": list(taints)},
        "status": {"allocatable": {"nvidia.com/gpu": str(cards), "cpu": "64", **more}},
    }


OWN_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("nodes", "blocks", "said"),
    [
        ([], False, "no node of the wanted kind is up now"),
        ([node("NVIDIA-T4", 8)], False, "there are NVIDIA-T4"),
        ([node("NVIDIA-L4", 0)], True, "a pod needs 1 cards (nvidia.com/gpu), the largest node has 0"),
        ([node("NVIDIA-L4", 2)], False, "have room for 2 of 3 pods"),
        ([node("NVIDIA-L4", 4, {"key": "team", "value": "b", "effect": "NoSchedule"})], False, "no node of the wanted"),
        ([node("NVIDIA-L4", 1, cpu="3920m", memory="14Gi")], True,
         "8 cores, the largest node has 3.92 (kubernetes.cpu_per_gpu); "
         "32Gi memory, the largest node has 14Gi (kubernetes.memory_per_gpu)"),
        ([node("NVIDIA-L4", 8, cpu="20", memory="400Gi")], False, "have room for 2 of 3 pods"),
        ([node("NVIDIA-L4", 1, cpu="4"), node("NVIDIA-L4", 1, memory="4Gi")], True, "no node has all at once"),
    ],
    ids=["no node", "another card", "cards broken", "few cards", "taint", "small node", "few cores", "neither"],
)  # fmt: skip
def test_nodes_that_do_not_suffice(
    nodes: list[Any], blocks: bool, said: str, workload: Workload
) -> None:
    (doubt,) = preflight.node_doubts(workload, nodes)
    assert doubt.blocks == blocks
    assert said in doubt.message


def test_nodes_that_suffice(workload: Workload) -> None:
    assert preflight.node_doubts(workload, [node("NVIDIA-L4", 4, OWN_TAINT)]) == []


@pytest.mark.parametrize(
    ("modes", "writes", "fits"),
    [
        (["ReadWriteMany"], True, True), (["ReadOnlyMany"], False, True),
        (["ReadOnlyMany"], True, False), (["ReadWriteOnce"], False, False),
    ],
)  # fmt: skip
def test_a_claim_must_be_one_that_pods_can_share(
    modes: list[str], writes: bool, fits: bool
) -> None:
    claim = {"metadata": {"name": "runs"}, "spec": {"accessModes": modes}}
    assert (preflight.claim_doubt(claim, writes=writes, pods=3) is None) == fits
    assert preflight.claim_doubt(claim, writes=writes, pods=1) is None


def test_everything_that_a_job_refers_to_is_looked_up() -> None:
    job = load_job(EXAMPLES / "tensor-parallel.yaml")
    made = make_workload(job, parallel=4, replicas=None, card_bytes=None)
    assert preflight.referenced(made) == [
        ("Secret", "bucket-keys", "env_from_secrets"),
        ("PersistentVolumeClaim", "models", "volumes"),
        ("PriorityClass", "batch-low", "priority_class"),
    ]


def test_pods_without_cards_need_cores_and_memory_too(tmp_path: Path) -> None:
    endpoint = {"engine.kind": "openai", "kubernetes.gpus": 0, "kubernetes.gpu_products": None}
    made = make_workload(
        load_job(job_file(tmp_path, endpoint)), parallel=1, replicas=None, card_bytes=None
    )
    (doubt,) = preflight.node_doubts(made, [node("", 0, cpu="4", memory="8Gi")])
    assert "16Gi memory, the largest node has 8Gi" in doubt.message
    assert preflight.node_doubts(made, [node("", 0, memory="900Gi")]) == []


def test_a_budget_needs_a_pilot_which_pods_do_not_make(tmp_path: Path) -> None:
    def doubts(begun: bool | Exception, **changes: Any) -> list[bool]:
        def has_begun() -> bool:
            if isinstance(begun, Exception):
                raise begun
            return begun

        job = load_job(job_file(tmp_path, {"plan": {"max_hours": 2}, **changes}))
        return [doubt.blocks for doubt in preflight.budget_doubts(job, has_begun)]

    assert doubts(begun=False) == [True]
    assert doubts(begun=True) == []
    assert doubts(begun=StorageError("no keys here")) == [False]
    assert doubts(begun=False, **{"run.dir": "/shared/runs"}) == [False]
    assert doubts(begun=False, plan=None) == []
    assert doubts(begun=False, **{"kubernetes.mode": "ray"}) == []
