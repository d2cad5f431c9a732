"""The commands on a cluster, against a stand-in API server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from batchwright.cli.app import app
from batchwright.core.records import Chunk, OrderBatch, Receipt, Slice
from batchwright.deploying import recent_rate
from batchwright.rundir import artifacts, layout
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.storage import Storage
from tests.support import recorded_pods as recorded
from tests.support import stand_in_cluster
from tests.support.kubernetes_jobs import job_file
from tests.support.stand_in_cluster import StandIn, stand_in

PODS, JOBS, EVENTS = "api/v1/pods", "apis/batch/v1/jobs", "api/v1/events"
RAYJOBS, CONFIG_MAPS = "apis/ray.io/v1/rayjobs", "api/v1/configmaps"
NODES, QUOTAS = "api/v1/nodes", "api/v1/resourcequotas"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    with stand_in(tmp_path) as (held, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        held.put("api/v1/namespaces", {"metadata": {"name": "batch"}}, namespace="")
        for number in range(3):
            labels = {"nvidia.com/gpu.product": "NVIDIA-L4"}
            held.put(
                NODES,
                {"metadata": {"name": f"n{number}", "labels": labels},
                 "status": {"allocatable": {"nvidia.com/gpu": "1"}}}, namespace="",
            )  # fmt: skip
        yield held


def call(*words: object, exit_code: int = 0) -> tuple[dict[str, Any], str]:
    """A command with --json: its object, and what it said on stderr."""
    ended = CliRunner().invoke(app, ["k8s", *map(str, words), "--json"])
    assert ended.exit_code == exit_code, f"{ended.output}\n{ended.exception!r}"
    return json.loads(ended.stdout), ended.stderr


def lines(*words: object) -> list[str]:
    """What a command shows to people."""
    ended = CliRunner().invoke(app, ["k8s", *map(str, words)])
    assert ended.exit_code == 0, ended.output
    return ended.stdout.splitlines()


def test_a_job_is_sent_whole_and_goes_whole(cluster: StandIn, tmp_path: Path) -> None:
    path = job_file(tmp_path)
    sent, _ = call("submit", path)
    assert sent["created"] == ["ConfigMap/reviews-job", "Job/reviews"]
    dry = [query.get("dryRun") for method, _, query in cluster.asked if method == "POST"]
    assert dry == ["All", "All", None, None]
    (owner,) = cluster.objects[CONFIG_MAPS, "batch", "reviews-job"]["metadata"]["ownerReferences"]
    assert owner["uid"] == cluster.objects[JOBS, "batch", "reviews"]["metadata"]["uid"]
    again, _ = call("submit", path, exit_code=2)
    assert "already" in again["error"]["message"]
    gone, _ = call("delete", path)
    assert gone["removed"] == ["Job/reviews"]  # the ConfigMap went with its owner
    assert not cluster.names(CONFIG_MAPS)
    assert call("delete", path)[0]["removed"] == []


def test_a_job_of_the_same_name_is_left_to_its_owner(cluster: StandIn, tmp_path: Path) -> None:
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    theirs.mkdir()
    mine.mkdir()
    path = job_file(theirs)
    call("submit", path)
    mine_too = job_file(mine, {"run.dir": "s3://mine/{name}"})
    for command in ("submit", "status", "logs", "delete"):
        answer, _ = call(command, mine_too, exit_code=2)
        assert "another job: its run directory is s3://runs/reviews" in answer["error"]["message"]
        assert "s3://mine/reviews" in answer["error"]["message"]
    assert cluster.names(JOBS) == ["reviews"]
    assert call("delete", path)[0]["removed"]


def test_what_the_server_refuses_leaves_nothing_behind(cluster: StandIn, tmp_path: Path) -> None:
    path = job_file(tmp_path)
    cluster.refusals["POST", JOBS] = (422, 'Job.batch "reviews" is invalid: spec: Required value')
    answer, _ = call("submit", path, exit_code=2)
    assert "Required value" in answer["error"]["message"]
    assert not cluster.names(CONFIG_MAPS)


def test_a_job_that_breaks_half_way_is_taken_back(
    cluster: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = cluster._create

    def break_at_the_job(kind: str, *rest: Any) -> Any:
        if kind == JOBS and rest[2].get("dryRun") != "All":
            return 500, {"message": "etcd is gone"}
        return create(kind, *rest)

    monkeypatch.setattr(cluster, "_create", break_at_the_job)
    answer, _ = call("submit", job_file(tmp_path), exit_code=75)
    assert "etcd is gone" in answer["error"]["message"]
    assert not cluster.names(CONFIG_MAPS)


def test_a_job_that_could_not_run_is_not_sent_unless_forced(
    cluster: StandIn, tmp_path: Path
) -> None:
    cluster.put(QUOTAS, {"metadata": {"name": "team"}, "status": {
        "hard": {"requests.nvidia.com/gpu": "0"}, "used": {}}})  # fmt: skip
    path = job_file(
        tmp_path,
        {"kubernetes.priority_class": "low", "kubernetes.secret_env": {"HF_TOKEN": "hub/t"}},
    )
    answer, _ = call("submit", path, exit_code=2)
    message = answer["error"]["message"]
    assert "quota team: requests.nvidia.com/gpu: one pod needs 1" in message
    assert "kubernetes.priority_class: there is no PriorityClass low" in message
    assert "kubernetes.secret_env.HF_TOKEN: there is no Secret hub" in message
    assert not cluster.names(JOBS)
    assert call("submit", path, "--force")[0]["created"]


def test_a_queue_is_found_whatever_version_of_kueue_there_is(
    cluster: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = job_file(tmp_path, {"kubernetes.queue": "spot"})
    answer, _ = call("submit", path, exit_code=2)
    assert "kubernetes.queue: there is no LocalQueue spot" in answer["error"]["message"]
    for version in ("v1beta1", "v1beta2"):
        kind = f"apis/kueue.x-k8s.io/{version}/localqueues"
        with monkeypatch.context() as there:
            there.setattr(stand_in_cluster, "KNOWN", stand_in_cluster.KNOWN | {kind})
            cluster.put(kind, {"metadata": {"name": "spot"}})
            assert call("submit", path)[0]["created"]
            call("delete", path)


def test_a_budget_without_a_pilot_is_told_before_pods_wait_for_cards(
    cluster: StandIn, tmp_path: Path
) -> None:
    path = job_file(
        tmp_path,
        {"plan": {"max_hours": 3}, "run.dir": "/runs/{name}",
         "kubernetes.volumes": [{"path": "/runs", "host_path": "/runs", "shared": True}]},
    )  # fmt: skip
    sent, _ = call("submit", path)
    assert any("need a pilot, which the pods do not make" in note for note in sent["notes"])


def test_what_may_not_be_looked_at_is_no_hindrance(cluster: StandIn, tmp_path: Path) -> None:
    cluster.refusals["GET", NODES] = (403, "nodes is forbidden: User cannot list resource nodes")
    sent, _ = call("submit", job_file(tmp_path))
    assert sent["notes"] == [
        "the nodes cannot be looked at: the cluster does not allow it: nodes is forbidden: User "
        "cannot list resource nodes"
    ]


def test_a_claim_that_may_not_be_looked_at_is_no_hindrance(
    cluster: StandIn, tmp_path: Path
) -> None:
    cluster.refusals["GET", "api/v1/persistentvolumeclaims"] = (403, "claims are forbidden")
    claims = [{"path": "/runs", "claim": "runs"}]
    path = job_file(tmp_path, {"kubernetes.volumes": claims, "run.dir": "/runs/{name}"})
    sent, _ = call("submit", path)
    assert any("the claim runs cannot be looked at" in note for note in sent["notes"])


def test_a_namespace_that_is_not_there(cluster: StandIn, tmp_path: Path) -> None:
    answer, _ = call("submit", job_file(tmp_path, {"kubernetes.namespace": "btach"}), exit_code=2)
    assert "kubernetes.namespace: there is no btach" in answer["error"]["message"]


def test_a_rayjob_needs_its_operator(
    cluster: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = job_file(tmp_path, {"kubernetes.mode": "ray"})
    with monkeypatch.context() as without:
        without.setattr(stand_in_cluster, "KNOWN", stand_in_cluster.KNOWN - {RAYJOBS})
        answer, _ = call("submit", path, exit_code=2)
        assert "knows no /apis/ray.io/v1/namespaces/batch/rayjobs" in answer["error"]["message"]
        assert not cluster.names(CONFIG_MAPS)
    sent, _ = call("submit", path)
    assert sent["created"] == ["ConfigMap/reviews-job", "RayJob/reviews"]
    found, _ = call("status", path)
    assert found["jobs"][0]["why"].startswith("KubeRay has not looked at it")
    assert call("delete", path)[0]["removed"] == ["RayJob/reviews"]


@pytest.fixture
def busy(cluster: StandIn) -> StandIn:
    """A job with a pod in each of many states."""
    cluster.put(JOBS, recorded.job(active=2, failedIndexes="3"))
    pods = [
        recorded.pod("reviews-0-a", 0, phase="Running", containerStatuses=recorded.box(ready=True, running={})),
        recorded.unscheduled("reviews-1-b", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", 1),
        recorded.unscheduled("reviews-2-c", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", 2),
        recorded.ended("reviews-3-d", 137, reason="OOMKilled", index=3),
        recorded.disrupted("reviews-0-e", "EvictionByEvictionAPI"),
    ]  # fmt: skip
    for pod in pods:
        cluster.put(PODS, pod)
    other = recorded.pod("other-0-x", phase="Running")
    other["metadata"]["labels"]["batchwright/job"] = "other"
    cluster.put(PODS, other)
    cluster.logs["reviews-0-a"] = "12 of 30 rows\n13 of 30 rows\n"
    cluster.logs["reviews-3-d"] = "loading\n"
    return cluster


def receipt(rows: int, finished_at: float, seconds: float) -> Receipt:
    return Receipt(
        0, 0, "f", "", rows, rows, 0, 0, 0, 0, 0, 0, "w", seconds, finished_at=finished_at
    )


def write_run(folder: Path, *, done: bool) -> None:
    """The files of a run of 30 rows in two chunks, of which one or both are committed."""
    storage = Storage(folder)
    manifest = Manifest({}, {}, (), (), "jsonl", "", "", False, 1, {})
    storage.put(layout.MANIFEST, artifacts.dump(manifest))
    chunks = tuple(Chunk(0, number, (Slice("p", 0, 15, 15 * number),)) for number in (0, 1))
    order = OrderBatch(0, 0, (), chunks, (), (), 30, last=True)
    storage.put(layout.order_batch(0, 0), artifacts.dump(order))
    for chunk in chunks if done else chunks[:1]:
        body = replace(receipt(15, time.time(), 30), chunk=chunk.number)
        storage.put(layout.receipt(chunk.name), artifacts.dump(body))


def test_status_joins_pods_and_rows(busy: StandIn, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "reviews", done=False)
    # Seen from here, the shared folder is where the job file says.
    path = job_file(tmp_path, {"run.dir": str(tmp_path / "runs/{name}")})
    found, _ = call("status", path)
    assert [pod["name"] for pod in found["pods"]] == [
        "reviews-0-a", "reviews-0-e", "reviews-1-b", "reviews-2-c", "reviews-3-d",
    ]  # fmt: skip
    assert found["jobs"][0]["failed_indexes"] == [3]
    assert found["run"]["rows_in"] == 30
    assert found["run"]["complete"] is False
    assert found["run"]["rows_per_s"] == pytest.approx(0.5, rel=0.1)
    assert found["run"]["eta_s"] == pytest.approx(30, rel=0.1)
    shown = lines("status", path)
    assert shown[0] == "Job reviews: running"
    assert shown[1].startswith("  failed indexes 3: ")
    assert shown[2].startswith("  rows   15 of 30 done · 0 failed · 0 rejected · 0.5 rows/s · 3")
    assert shown[3] == "  pods   1 running, 1 stopped, 2 pending, 1 failed"
    # Pods that wait for one reason are one line.
    assert any(
        "reviews-1-b and 1 more: pending: no node takes it: 3 nodes have too few free cards" in line
        for line in shown
    )
    assert any("killed for memory" in line for line in shown)


def test_a_run_that_is_complete_has_no_time_left(busy: StandIn, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "reviews", done=True)
    shown = lines("status", job_file(tmp_path, {"run.dir": str(tmp_path / "runs/{name}")}))
    assert "  rows   30 of 30 done · 0 failed · 0 rejected · complete" in shown


def test_status_says_so_before_the_run_has_begun(busy: StandIn, tmp_path: Path) -> None:
    shown = lines("status", job_file(tmp_path))
    assert any(line.startswith("  rows   not known from here, or not begun: ") for line in shown)


def test_the_rate_is_that_of_the_last_minutes() -> None:
    now = time.time()
    long_ago = receipt(9_000, now - 7200, 10)
    assert recent_rate([long_ago], now) == 0.0
    assert recent_rate([long_ago, receipt(60, now - 30, 30), receipt(60, now, 30)], now) == 2.0


def test_logs_are_of_all_pods_or_of_one(busy: StandIn, tmp_path: Path) -> None:
    path = job_file(tmp_path)
    shown = lines("logs", path)
    assert "reviews-0-a: 13 of 30 rows" in shown
    assert any(line.startswith("reviews-1-b: (no log yet: no node takes it") for line in shown)
    assert lines("logs", path, "--pod", "reviews-0-a") == ["12 of 30 rows", "13 of 30 rows"]
    assert lines("logs", path, "--index", "3", "--follow", "--tail", "5") == ["loading"]
    asked = [query for method, where, query in busy.asked if where.endswith("reviews-3-d/log")]
    assert asked[-1] == {"container": "batchwright", "follow": "true", "tailLines": "5"}
    answer, _ = call("logs", path, "--pod", "nobody", exit_code=2)
    assert "no such pod" in answer["error"]["message"]


def test_a_job_that_was_never_sent(cluster: StandIn, tmp_path: Path) -> None:
    answer, _ = call("status", job_file(tmp_path), exit_code=2)
    assert "there is no job reviews in the namespace batch" in answer["error"]["message"]


def test_a_server_that_stumbles_is_asked_again(busy: StandIn, tmp_path: Path) -> None:
    busy.faults = 2
    assert call("status", job_file(tmp_path))[0]["pods"]


def test_a_server_that_is_gone_ends_with_75(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stand_in(tmp_path) as (_, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    answer, _ = call("status", job_file(tmp_path), exit_code=75)
    assert answer["error"]["kind"] == "ClusterError"
    assert "does not answer" in answer["error"]["message"]


def test_no_kubeconfig_and_an_unknown_context(
    cluster: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, _ = call("status", job_file(tmp_path, {"kubernetes.context": "prod"}), exit_code=2)
    assert "prod" in answer["error"]["message"]
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    answer, _ = call("status", job_file(tmp_path), exit_code=2)
    assert "no cluster to talk to" in answer["error"]["message"]
    for text in ("a: [", "hello", "- a", "contexts: 3\ncurrent-context: c"):
        (tmp_path / "damaged").write_text(text)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "damaged"))
        answer, _ = call("status", job_file(tmp_path), exit_code=2)
        assert "no cluster to talk to" in answer["error"]["message"]


def test_render_writes_what_check_passes(tmp_path: Path) -> None:
    path, folder = job_file(tmp_path), tmp_path / "manifests"
    written, _ = call("render", path, "-o", folder)
    assert [Path(name).name for name in written["files"]] == [
        "01-configmap-reviews-job.yaml", "02-job-reviews.yaml", "kustomization.yaml",
    ]  # fmt: skip
    assert call("check", folder)[0]["right"] == ["ConfigMap/reviews-job", "Job/reviews"]
    shown = CliRunner().invoke(app, ["k8s", "render", str(path), "--mode", "ray-deployment"])
    assert shown.stdout.count("\nkind: Deployment\n") == 2
    (folder / "my-patch.yaml").write_text("a: b")
    call("render", path, "-o", folder, "--mode", "ray")
    assert sorted(one.name for one in folder.iterdir()) == [
        "01-configmap-reviews-job.yaml", "02-rayjob-reviews.yaml", "kustomization.yaml", "my-patch.yaml",
    ]  # fmt: skip
    call("render", path, "-o", path / "below", exit_code=2)
    call("render", path, "-o", folder)
    job = folder / "02-job-reviews.yaml"
    job.write_text(job.read_text().replace("restartPolicy: Never", "restartPolicy: Always"))
    answer, _ = call("check", job, exit_code=2)
    assert "Job/reviews: spec.template.spec.restartPolicy: Always" in answer["error"]["message"]
    job.write_text("a: [")
    assert "02-job-reviews.yaml" in call("check", job, exit_code=2)[0]["error"]["message"]
