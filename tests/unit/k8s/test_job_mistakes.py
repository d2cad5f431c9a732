"""Mistakes in a job file that matter to pods: each is refused by the name of its field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchwright.core.errors import JobError
from tests.support.kubernetes_jobs import job_file, one, rendered

LONG = "x" * 64

MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("no image", {"image": None}, "kubernetes.image is missing"),
    ("image without tag", {"image": "registry.example/batchwright"}, "kubernetes.image: "),
    ("latest", {"image": "registry.example/batchwright:latest"}, "kubernetes.image: "),
    ("image with capitals", {"image": "Registry/BW:1"}, "kubernetes.image: "),
    ("unknown key", {"namespcae": "x"}, "kubernetes.namespcae; did you mean namespace?"),
    ("namespace with capitals", {"namespace": "ML_Team"}, "kubernetes.namespace: "),
    ("pull policy", {"image_pull_policy": "IfNotPresnt"}, "kubernetes.image_pull_policy: "),
    ("quantity with a space", {"memory_per_gpu": "4 GB"}, "kubernetes.memory_per_gpu: "),
    ("cores", {"cpu_per_gpu": "eight"}, "kubernetes.cpu_per_gpu: "),
    ("label too long", {"node_selector": {"pool": LONG}}, "kubernetes.node_selector: "),
    ("label key", {"node_selector": {"a b": "c"}}, "kubernetes.node_selector: "),
    ("taint effect", {"tolerations": [{"key": "a", "effect": "NoShedule"}]}, "kubernetes.tolerations.0.effect: "),
    ("toleration", {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}, "kubernetes.tolerations.0: "),
    ("negative deadline", {"deadline_hours": -1}, "kubernetes.deadline_hours: "),
    ("negative ttl", {"ttl_s": -1}, "kubernetes.ttl_s: "),
    ("no retries", {"retries": -2}, "kubernetes.retries: "),
    ("priority class", {"priority_class": "High Priority"}, "kubernetes.priority_class: "),
    ("hami and dra", {"hami": {"memory_mb": 1}, "dra": {}}, "kubernetes: give hami or dra"),
    ("hami twice", {"hami": {"memory_mb": 9, "memory_percent": 9}}, "kubernetes.hami: "),
    ("hami share", {"hami": {"memory_percent": 120}}, "kubernetes.hami.memory_percent: "),
    ("dra too early", {"dra": {}, "version": "1.32"}, "dra: resource.k8s.io/v1 needs"),
    ("version", {"version": "1.34.2"}, "kubernetes.version: "),
    ("a version of tomorrow", {"version": "1.99"}, "kubernetes.version: there are no schemas"),
    ("elastic job", {"max_replicas": 9}, "max_replicas needs mode: ray"),
    ("elastic and queued", {"mode": "ray", "max_replicas": 9, "queue": "q"}, "max_replicas does not go with queue"),
    ("range", {"mode": "ray", "min_replicas": 9, "max_replicas": 3}, "min_replicas (9) is more than"),
    ("least alone", {"min_replicas": 2}, "kubernetes.min_replicas: "),
    ("queue priority alone", {"queue_priority": "low"}, "kubernetes.queue_priority: "),
    ("queue of deployments", {"mode": "ray-deployment", "queue": "q"}, "kubernetes.queue: "),
    ("secret in the open", {"env": {"HF_TOKEN": "hf_abc"}}, "kubernetes.env: "),
    ("secret of another kind", {"env": {"AZURE_STORAGE_ACCOUNT_KEY": "ab=="}}, "kubernetes.env: "),
    ("secret in an address", {"env": {"HTTPS_PROXY": "http://me:pass@proxy:3128"}}, "HTTPS_PROXY has a password"),
    ("set twice", {"env": {"HF_HOME": "/a"}, "secret_env": {"HF_HOME": "a/b"}}, "env and secret_env both set HF_HOME"),
    ("key of a Secret", {"secret_env": {"HF_TOKEN": "hub/a/b"}}, "kubernetes.secret_env: "),
    ("kind of card as people say it", {"gpu_products": ["NVIDIA L4"]}, "'NVIDIA L4' is not the value of a label"),
    ("key of an annotation", {"annotations": {"a b": "c"}}, "kubernetes.annotations: "),
    ("key of a taint", {"tolerations": [{"key": "a b", "operator": "Exists"}]}, "kubernetes.tolerations.0.key: "),
    ("resource", {"gpu_resource": "nvidia com/gpu"}, "kubernetes.gpu_resource: "),
    ("folder of a node", {"volumes": [{"path": "/m", "host_path": "data"}]}, "kubernetes.volumes.0.host_path: "),
    ("a name for hosts", {"mode": "ray", "name": "2026-reviews"}, "begin with a letter"),
    ("secret without key", {"secret_env": {"HF_TOKEN": "hub"}}, "kubernetes.secret_env: "),
    ("two sources", {"volumes": [{"path": "/m", "claim": "a", "host_path": "/b"}]}, "kubernetes.volumes.0: "),
    ("our own mount", {"volumes": [{"path": "/dev/shm", "claim": "a"}]}, "kubernetes.volumes.0.path: "),
    ("the same path twice", {"volumes": [{"path": "/m", "claim": c} for c in "ab"]}, "volumes: two have the same path"),
    ("shared memory too large", {"shm": "40Gi"}, "kubernetes.shm: "),
    ("root", {"user_id": 0}, "kubernetes.user_id: "),
    ("name", {"name": "-x-"}, "kubernetes.name: "),
    ("no size", {"replicas": None}, "kubernetes.replicas is missing"),
    ("unknown card", {"gpu_products": ["ACME-X1"]}, "kubernetes.memory_per_gpu is missing"),
]  # fmt: skip

ELSEWHERE: list[tuple[dict[str, Any], str]] = [
    ({"run.dir": "runs/{name}"}, "run.dir: pods cannot share"),
    ({"run.dir": None}, "run.dir: pods cannot share runs/{name}"),
    ({"output.path": "out"}, "output.path: pods cannot share"),
    ({"input.path": ["s3://a/b", "rows.jsonl"]}, "input.path: pods cannot see"),
    ({"run.engines_per_gpu": 2}, "run.engines_per_gpu: "),
    ({"engine.options": {"tensor_parallel_size": 4}}, "kubernetes.gpus: a pod has 1 cards"),
    ({"kubernetes.gpus": None}, "hardware.gpu is missing"),
    (
        {"kubernetes.gpus": 8, "engine.options": {"tensor_parallel_size": 4}},
        "one engine, which spans 4",
    ),
    ({"kubernetes.gpus": 2, "task": "embed"}, "one engine, which spans 1"),
    ({"engine.kind": "openai"}, "an endpoint's clients use no card"),
    ({"run.executor": "ray"}, "run.executor: ray: the pods of an Indexed Job use no Ray"),
    ({"model.adapters": {"a": "/adapters/a"}}, "model.adapters.a: pods cannot see"),
    ({"model.adapters": {"a": "./a"}}, "model.adapters.a: pods cannot see"),
    ({"model.name": None}, "no model is given"),
    (
        {
            "task": "embed",
            "prompt": {"column": "a"},
            "load": [{"to": "postgresql://me:hunter2@db/x?table=t"}],
        },
        "a secret does not belong in a URL",
    ),
    ({"load": [{"to": "qdrant://db/t"}]}, "load: task: generate makes no vectors"),
    (
        {"engine": {"kind": "openai", "options": {"api_key": "sk-1"}}, "kubernetes.gpus": None},
        "api_key",
    ),
]


@pytest.mark.parametrize(("changes", "said"), [pytest.param(c, s, id=n) for n, c, s in MISTAKES])
def test_a_mistake_is_refused_by_name(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = job_file(tmp_path, {f"kubernetes.{key}": value for key, value in changes.items()})
    with pytest.raises(JobError) as refused:
        rendered(path)
    assert said in str(refused.value)


@pytest.mark.parametrize(("changes", "said"), ELSEWHERE, ids=lambda one: str(one)[:40])
def test_other_sections_are_looked_at_too(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(JobError) as refused:
        rendered(job_file(tmp_path, changes))
    assert said in str(refused.value)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    path = job_file(
        tmp_path, {"run.dir": "here", "input.path": "rows.jsonl", "kubernetes.image": None}
    )
    with pytest.raises(JobError) as refused:
        rendered(path)
    for name in ("run.dir: ", "input.path: ", "kubernetes.image is missing"):
        assert name in refused.value.message


@pytest.mark.parametrize(
    ("volume", "is_shared"),
    [
        ({"claim": "runs"}, True),
        ({"claim": "runs", "read_only": True}, False),
        ({"host_path": "/mnt/nfs"}, False),
        ({"host_path": "/mnt/nfs", "shared": True}, True),
    ],
    ids=["claim", "read only", "each node's own", "the same on all nodes"],
)
def test_a_run_directory_needs_a_place_that_pods_share(
    volume: dict[str, Any], is_shared: bool, tmp_path: Path
) -> None:
    path = job_file(
        tmp_path,
        {"run.dir": "/shared/runs/{name}", "kubernetes.volumes": [{"path": "/shared", **volume}]},
    )
    if is_shared:
        assert rendered(path)
        return
    with pytest.raises(JobError, match=r"run\.dir: pods cannot share /shared"):
        rendered(path)


def test_a_variable_that_says_where_a_secret_lies_is_none(tmp_path: Path) -> None:
    plain = {
        "TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": "9", "NO_PROXY": "10.0.0.0/8,.svc",
        "GOOGLE_APPLICATION_CREDENTIALS": "/keys/bucket.json", "HTTPS_PROXY": "http://proxy:3128",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token",
    }  # fmt: skip
    volumes = [{"path": "/keys", "secret": "bucket-key"}, {"path": "/ca", "config_map": "ca"}]
    found = one(
        rendered(job_file(tmp_path, {"kubernetes.env": plain, "kubernetes.volumes": volumes})),
        "Job",
    )
    pod = found["spec"]["template"]["spec"]
    given = {entry["name"]: entry["value"] for entry in pod["containers"][0]["env"]}
    assert plain.items() <= given.items()
    assert {"secretName": "bucket-key"} in [volume.get("secret") for volume in pod["volumes"]]
    assert {"name": "ca"} in [volume.get("configMap") for volume in pod["volumes"]]
    mounts = {mount["mountPath"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts["/keys"]["readOnly"]
    assert mounts["/ca"]["readOnly"]


def test_an_address_that_only_the_pods_know_is_no_mistake(tmp_path: Path) -> None:
    assert rendered(job_file(tmp_path, {"engine": {"kind": "openai"}, "kubernetes.gpus": 0,
                                        "kubernetes.gpu_products": None}))  # fmt: skip
