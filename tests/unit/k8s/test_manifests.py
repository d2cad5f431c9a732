"""What is rendered: six jobs, three modes, and what each part of a job file becomes."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchwright import deploying
from batchwright.cli.options import job_for_elsewhere
from batchwright.config.load import load_job
from batchwright.k8s.pod_rules import SHM
from batchwright.k8s.render import write_manifests
from tests.support.kubernetes_jobs import EXAMPLES, job_file, one, rendered

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
KUBERAY_SCHEMA = "BATCHWRIGHT_KUBERAY_SCHEMA"


@functools.cache  # rendering checks against schemas, which takes a while to load
def example(name: str, **settings: str) -> list[dict[str, Any]]:
    return rendered(EXAMPLES / f"{name}.yaml", **settings)


def container_of(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest["spec"]["template"]["spec"]["containers"][0]


def resources_of(manifest: dict[str, Any]) -> dict[str, Any]:
    return container_of(manifest)["resources"]


def test_there_are_six_examples() -> None:
    assert len(NAMES) == 6


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_right_by_schemas_and_rules_and_survives_kustomize(
    name: str, tmp_path: Path
) -> None:
    found = example(name)  # refuses itself if anything is wrong
    write_manifests(found, tmp_path)
    kubectl = Path(sys.executable).parent / "kubectl"
    built = subprocess.run(
        [str(kubectl), "kustomize", str(tmp_path)], capture_output=True, text=True, check=True
    )
    back = list(yaml.safe_load_all(built.stdout))
    key = json.dumps
    assert sorted(key(one, sort_keys=True) for one in back) == sorted(
        key(one, sort_keys=True) for one in found
    )


def test_an_indexed_job_says_whose_fault_a_failure_is() -> None:
    spec = one(example("one-gpu"), "Job")["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 8, 8)
    assert spec["backoffLimitPerIndex"] == 3
    assert spec["activeDeadlineSeconds"] == 72 * 3600
    assert spec["ttlSecondsAfterFinished"] == 86_400
    actions = [
        (rule["action"], rule.get("onExitCodes", {}).get("values"))
        for rule in spec["podFailurePolicy"]["rules"]
    ]
    assert actions == [("FailJob", [2, 3]), ("FailIndex", [4]), ("Ignore", [75]), ("Ignore", None)]
    pod = spec["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 60  # run.grace_s, and time to stop
    assert pod["restartPolicy"] == "Never"
    assert container_of(one(example("one-gpu"), "Job"))["command"] == [
        "batchwright", "worker", "/etc/batchwright/job.yaml",
    ]  # fmt: skip


def test_whose_user_the_pods_are_may_be_left_to_the_cluster() -> None:
    pod = one(example("one-gpu"), "Job")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 1000
    job, run_dir = job_for_elsewhere(
        str(EXAMPLES / "one-gpu.yaml"), {}, ["kubernetes.user_id=null"]
    )
    found = deploying.render(job, run_dir, threading.Event(), lambda _: None)[1]
    security = one(found, "Job")["spec"]["template"]["spec"]["securityContext"]
    assert security["runAsNonRoot"]
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & security.keys()


def test_a_pod_asks_for_what_it_may_have_and_is_not_root() -> None:
    job = one(example("one-gpu"), "Job")
    resources = resources_of(job)
    assert resources["limits"] == resources["requests"]
    # Twice the 46,068 MiB of an L40S, by the node label's name.
    assert resources["limits"] == {"cpu": "8", "memory": "90Gi", "nvidia.com/gpu": "1"}
    pod, container = job["spec"]["template"]["spec"], container_of(job)
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L40S"}
    token = next(entry for entry in container["env"] if entry["name"] == "HF_TOKEN")
    assert token["valueFrom"]["secretKeyRef"] == {"name": "hugging-face", "key": "token"}


def test_an_engine_over_four_cards_has_shared_memory_for_them() -> None:
    job = one(example("tensor-parallel"), "Job")
    volumes = {volume["name"]: volume for volume in job["spec"]["template"]["spec"]["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container_of(job)["volumeMounts"]}
    assert volumes[mounts[SHM]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert resources_of(job)["limits"]["nvidia.com/gpu"] == "4"
    assert resources_of(job)["limits"]["cpu"] == "48"
    terms = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H200"]


def test_hami_dra_and_kueue_are_one_line_each() -> None:
    limits = resources_of(one(example("hami"), "Job"))["limits"]
    assert limits["nvidia.com/gpumem"] == "16000"
    assert limits["nvidia.com/gpucores"] == "30"
    found = example("dra")
    template, job = one(found, "ResourceClaimTemplate"), one(found, "Job")
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == "gpu.nvidia.com"
    assert resources_of(job)["claims"] == [{"name": "gpu"}]
    assert "nvidia.com/gpu" not in resources_of(job)["limits"]
    head = one(example("kueue-spot"), "Job")["metadata"]
    assert head["labels"]["kueue.x-k8s.io/queue-name"] == "spot"
    assert head["annotations"]["kueue.x-k8s.io/job-min-parallelism"] == "2"


METRICS = {"name": "run-metrics", "containerPort": 9400}


def has_metrics(pod: dict[str, Any]) -> bool:
    """Whether a template has the port and says so; both or neither."""
    annotations = pod["metadata"].get("annotations", {})
    (container,) = pod["spec"]["containers"]
    found = METRICS in container.get("ports", [])
    assert found == (annotations.get("prometheus.io/port") == "9400")
    assert found == (annotations.get("prometheus.io/scrape") == "true")
    return found


def test_pods_that_know_how_far_the_run_is_show_their_metrics(tmp_path: Path) -> None:
    port = {"run.metrics_port": 9400}
    assert not has_metrics(one(rendered(job_file(tmp_path)), "Job")["spec"]["template"])
    assert has_metrics(one(rendered(job_file(tmp_path, port)), "Job")["spec"]["template"])
    cluster = one(rendered(job_file(tmp_path, port), mode="ray"), "RayJob")["spec"]
    cluster = cluster["rayClusterSpec"]
    assert has_metrics(cluster["headGroupSpec"]["template"])
    assert not has_metrics(cluster["workerGroupSpecs"][0]["template"])


def test_a_rayjob_ends_its_cluster_and_cannot_hang_for_ever() -> None:
    found = example("ray-two-groups")
    job = one(found, "RayJob")["spec"]
    assert job["shutdownAfterJobFinishes"] is True
    assert job["activeDeadlineSeconds"] > 0
    assert "deletionStrategy" not in job
    cluster = job["rayClusterSpec"]
    head = cluster["headGroupSpec"]
    assert head["rayStartParams"]["num-gpus"] == "0"
    assert "nvidia.com/gpu" not in container_of({"spec": head})["resources"]["limits"]
    assert cluster["enableInTreeAutoscaling"] is True
    # The autoscaler, which KubeRay puts beside the head, speaks to the API server.
    assert head["template"]["spec"]["automountServiceAccountToken"] is True
    assert cluster["autoscalerOptions"]["securityContext"]["allowPrivilegeEscalation"] is False
    sizes = [
        (group["groupName"], group["minReplicas"], group["replicas"], group["maxReplicas"])
        for group in cluster["workerGroupSpecs"]
    ]
    assert sizes == [("l40s", 4, 4, 4), ("a100", 0, 2, 8)]
    in_pods = yaml.safe_load(one(found, "ConfigMap")["data"]["job.yaml"])
    assert in_pods["run"]["executor"] == "ray"
    assert in_pods["run"]["replicas"] == 12
    assert in_pods["run"]["ray"] == {"min_replicas": 4}


@pytest.mark.skipif(KUBERAY_SCHEMA not in os.environ, reason=f"{KUBERAY_SCHEMA} names no schema")
def test_a_rayjob_keeps_to_kuberays_own_schema() -> None:
    import jsonschema

    schema = json.loads(Path(os.environ[KUBERAY_SCHEMA]).read_text())
    for job in (
        one(example("ray-two-groups"), "RayJob"),
        one(example("dra", mode="ray"), "RayJob"),
    ):
        jsonschema.Draft202012Validator(schema).validate(job)


def test_without_the_operator_a_job_joins_a_head_and_workers() -> None:
    found = example("one-gpu", mode="ray-deployment")
    kinds = [manifest["kind"] for manifest in found]
    assert kinds == ["ConfigMap", "Service", "Deployment", "Deployment", "Job"]
    head, workers = found[2], found[3]
    assert workers["spec"]["replicas"] == 8
    assert resources_of(workers)["limits"]["nvidia.com/gpu"] == "1"
    assert "nvidia.com/gpu" not in resources_of(head)["limits"]
    chosen = found[1]["spec"]["selector"]
    assert chosen.items() <= head["spec"]["template"]["metadata"]["labels"].items()
    assert not chosen.items() <= workers["spec"]["template"]["metadata"]["labels"].items()
    command = container_of(found[4])["command"][-1]
    assert command.endswith("exec batchwright run /etc/batchwright/job.yaml")
    # It is up before the pods with cards are, and a run refuses a cluster without room.
    assert "ray.nodes()) < 3" in command
    in_pods = yaml.safe_load(found[0]["data"]["job.yaml"])
    assert in_pods["run"]["ray"] == {"min_replicas": 1}
    # Cards are held until it goes.
    assert found[4]["spec"]["ttlSecondsAfterFinished"] == 60


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["job", "ray", "ray-deployment"])
def test_every_example_renders_in_every_mode_that_can_be(name: str, mode: str) -> None:
    if (name, mode) in {
        ("ray-two-groups", "job"),
        ("kueue-spot", "ray-deployment"),
        ("kueue-spot", "ray"),
    }:
        pytest.skip("autoscaling or a queue does not go with this mode")
    assert one(example(name, mode=mode), "ConfigMap")


def test_groups_are_one_indexed_job_each(tmp_path: Path) -> None:
    groups = [{"name": "l4", "replicas": 2}, {"name": "a10", "gpu_products": ["NVIDIA-A10"]}]
    found = rendered(job_file(tmp_path, {"kubernetes.groups": groups}))
    jobs = [manifest for manifest in found if manifest["kind"] == "Job"]
    assert [(job["metadata"]["name"], job["spec"]["completions"]) for job in jobs] == [
        ("reviews-l4", 2), ("reviews-a10", 3),
    ]  # fmt: skip
    kinds = [job["spec"]["template"]["spec"]["nodeSelector"] for job in jobs]
    assert [kind["nvidia.com/gpu.product"] for kind in kinds] == ["NVIDIA-L4", "NVIDIA-A10"]


def test_the_job_file_in_the_pods_reads_as_the_one_here(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    path = job_file(
        tmp_path,
        {"model.chat_template": "chat.jinja", "kubernetes.gpus": 2, "sampling": {"max_tokens": 9},
         "engine": {"options": {"max_model_len": 512, "hf_overrides": None}}},
    )  # fmt: skip
    data = one(rendered(path), "ConfigMap")["data"]
    assert data["chat_template.jinja"] == "{{ messages }}"
    (tmp_path / "in-pods.yaml").write_text(data["job.yaml"])
    there = load_job(tmp_path / "in-pods.yaml")
    here = load_job(path)
    assert there.model.chat_template == "/etc/batchwright/chat_template.jinja"
    assert there.engine.options == {
        "max_model_len": 512, "hf_overrides": None, "tensor_parallel_size": 2,
    }  # fmt: skip
    for section in ("name", "input", "prompt", "sampling", "output"):
        assert getattr(there, section) == getattr(here, section)
    assert there.run.dir == here.run.dir


def test_the_root_can_be_opened_for_an_image_that_writes_there(tmp_path: Path) -> None:
    job = one(rendered(job_file(tmp_path, {"kubernetes.read_only_root": False})), "Job")
    assert container_of(job)["securityContext"]["readOnlyRootFilesystem"] is False


def test_an_endpoint_needs_no_card(tmp_path: Path) -> None:
    path = job_file(tmp_path, {"engine.kind": "openai", "kubernetes.gpus": None})
    limits = resources_of(one(rendered(path), "Job"))["limits"]
    assert limits == {"cpu": "8", "memory": "16Gi"}


def test_vectors_take_one_card_and_the_pods_choose_their_engine(tmp_path: Path) -> None:
    path = job_file(tmp_path, {"task": "embed", "model.name": "a/bert", "kubernetes.gpus": None,
                               "kubernetes.memory_per_gpu": "32Gi"})  # fmt: skip
    found = rendered(path)
    assert resources_of(one(found, "Job"))["limits"]["nvidia.com/gpu"] == "1"
    in_pods = yaml.safe_load(one(found, "ConfigMap")["data"]["job.yaml"])
    assert "kind" not in in_pods.get("engine", {})
    (tmp_path / "job.yaml").unlink()
    path = job_file(tmp_path, {"task": "embed", "engine.kind": "vllm"})
    in_pods = yaml.safe_load(one(rendered(path), "ConfigMap")["data"]["job.yaml"])
    assert in_pods["engine"] == {"kind": "vllm"}


def test_a_plan_says_how_many_cards_an_engine_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PlanOfFour:
        def value(self, name: str) -> int:
            return {"tensor_parallel_size": 4, "pipeline_parallel_size": 1}[name]

    monkeypatch.setattr(deploying.pipeline, "plan", lambda *_, **__: (PlanOfFour(), None))
    path = job_file(
        tmp_path,
        {"hardware": {"gpu": "H100", "count": 9}, "kubernetes.gpus": None,
         "kubernetes.replicas": None},
    )  # fmt: skip
    found = rendered(path)
    job = one(found, "Job")
    assert job["spec"]["completions"] == 2  # nine cards are two engines of four
    assert resources_of(job)["limits"]["nvidia.com/gpu"] == "4"
    assert resources_of(job)["limits"]["memory"] == "640Gi"
    in_pods = yaml.safe_load(one(found, "ConfigMap")["data"]["job.yaml"])
    assert in_pods["engine"]["options"] == {"tensor_parallel_size": 4}
    assert "hardware" not in in_pods  # the pods look at their own cards


def test_only_a_head_with_an_autoscaler_gets_a_token(tmp_path: Path) -> None:
    def token(**changes: Any) -> bool:
        path = job_file(tmp_path, {"kubernetes.mode": "ray", **changes})
        cluster = one(rendered(path), "RayJob")["spec"]["rayClusterSpec"]
        (group,) = cluster["workerGroupSpecs"]
        assert not group["template"]["spec"]["automountServiceAccountToken"]
        return bool(cluster["headGroupSpec"]["template"]["spec"]["automountServiceAccountToken"])

    assert token(**{"kubernetes.max_replicas": 9, "kubernetes.min_replicas": 1})
    assert not token()


def test_pods_of_ray_are_asked_how_they_are_without_wget(tmp_path: Path) -> None:
    cluster = one(rendered(job_file(tmp_path, {"kubernetes.mode": "ray"})), "RayJob")["spec"]["rayClusterSpec"]  # fmt: skip
    boxes = [container_of({"spec": cluster["headGroupSpec"]}),
             container_of({"spec": cluster["workerGroupSpecs"][0]})]  # fmt: skip
    asked = [box[probe]["exec"]["command"] for box in boxes for probe in ("readinessProbe", "livenessProbe")]  # fmt: skip
    assert [words[:2] for words in asked] == [["python3", "-c"]] * 4
    assert [len(words) - 3 for words in asked] == [2, 2, 1, 1]  # the head is asked for both

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"success" if self.path.startswith("/api/") else b"no")

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = HTTPServer(("localhost", 0), Health)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    proxied = {**os.environ, "http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    places = [f"{server.server_port}/api/gcs_healthz", f"{server.server_port}/elsewhere"]
    try:
        ended = [
            subprocess.run(
                [sys.executable, *asked[0][1:3], place], env=proxied, check=False
            ).returncode
            for place in places
        ]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert ended == [0, 1]


def test_long_names_of_jobs_do_not_become_one(tmp_path: Path) -> None:
    def name(of: str) -> str:
        return str(one(rendered(job_file(tmp_path, {"name": of})), "Job")["metadata"]["name"])

    long = "Reviews.2026-11-30_Llama-3.3-70B-Instruct-FP8"
    one_of, other = name(f"{long}-german"), name(f"{long}-french")
    assert one_of != other
    assert max(len(one_of), len(other)) <= 40
    assert one_of.startswith("reviews-2026-11-30-llama")
    groups = [{"name": "h100-reserved-spot", "replicas": 1}]
    found = rendered(job_file(tmp_path, {"name": long, "kubernetes.groups": groups}))
    assert len(one(found, "Job")["metadata"]["name"]) <= 52
    assert name("2026.reviews") == "job-2026-reviews"  # a Service must begin with a letter
    assert name("My Job.v2") == "my-job-v2"


def test_who_needs_no_card_keeps_to_processor_and_zone_but_not_to_cards(tmp_path: Path) -> None:
    path = job_file(tmp_path, {
        "kubernetes.mode": "ray",
        "kubernetes.node_selector": {"kubernetes.io/arch": "amd64", "pool": "gpu"},
        "kubernetes.tolerations": [{"key": "team", "operator": "Exists"}],
        "kubernetes.runtime_class": "nvidia",
    })  # fmt: skip
    spec = one(rendered(path), "RayJob")["spec"]
    cluster = spec["rayClusterSpec"]
    for template in (cluster["headGroupSpec"]["template"], spec["submitterPodTemplate"]):
        pod = template["spec"]
        assert pod["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
        assert [one_of["key"] for one_of in pod["tolerations"]] == ["team"]
        assert "runtimeClassName" not in pod
    pod = cluster["workerGroupSpecs"][0]["template"]["spec"]
    assert pod["nodeSelector"]["pool"] == "gpu"
    assert pod["runtimeClassName"] == "nvidia"


def test_the_taint_of_cards_is_put_up_with_by_pods_with_cards_only(tmp_path: Path) -> None:
    def keys(**changes: Any) -> list[str]:
        spec = one(rendered(job_file(tmp_path, changes)), "Job")["spec"]["template"]["spec"]
        return [toleration["key"] for toleration in spec.get("tolerations", [])]

    assert keys(**{"kubernetes.gpu_resource": "nvidia.com/mig-1g.10gb"}) == [
        "nvidia.com/gpu", "nvidia.com/mig-1g.10gb",
    ]  # fmt: skip
    endpoint = {"engine.kind": "openai", "kubernetes.gpus": 0, "kubernetes.gpu_products": None}
    assert keys(**endpoint) == []


def test_ray_wants_a_token_where_there_can_be_one(tmp_path: Path) -> None:
    def modes(**changes: Any) -> set[str | None]:
        path = job_file(tmp_path, {"kubernetes.mode": "ray-deployment", **changes})
        found = [one_of for one_of in rendered(path) if one_of["kind"] in {"Deployment", "Job"}]
        assert len(found) == 3
        given = [
            {entry["name"]: entry.get("value") for entry in container_of(one_of)["env"]}
            for one_of in found
        ]
        return {entry.get("RAY_AUTH_MODE") for entry in given}

    cluster = one(rendered(job_file(tmp_path, {"kubernetes.mode": "ray"})), "RayJob")["spec"][
        "rayClusterSpec"
    ]
    assert cluster["authOptions"] == {"mode": "token"}
    assert modes() == {"disabled"}
    assert modes(**{"kubernetes.secret_env": {"RAY_AUTH_TOKEN": "ray/token"}}) == {"token"}
    assert modes(**{"kubernetes.env": {"RAY_AUTH_MODE": "k8s"}}) == {"k8s"}


def test_the_driver_waits_until_there_is_a_worker(tmp_path: Path) -> None:
    found = rendered(
        job_file(tmp_path, {"kubernetes.mode": "ray-deployment", "run.ray": {"min_replicas": 2}})
    )
    in_pods = yaml.safe_load(one(found, "ConfigMap")["data"]["job.yaml"])
    assert in_pods["run"]["ray"] == {"min_replicas": 2}  # the job file's own word
    # A stand-in for Ray, whose cluster grows at each look.
    (tmp_path / "ray.py").write_text(
        "import itertools\nlooks = itertools.count(1)\ndef init(*_, **__): pass\n"
        "def nodes():\n    n = next(looks)\n    print('look', n)\n"
        "    return [{'Alive': True}] * 2 + [{'Alive': n > 1}]\n"
    )
    command = container_of(one(found, "Job"))["command"][-1]
    wait = command.split(" && ")[1].replace("python3", sys.executable, 1)
    ended = subprocess.run(
        ["/bin/sh", "-c", wait], env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ended.stdout.split() == ["look", "1", "look", "2"]
