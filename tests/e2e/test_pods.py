"""What a rendered Job would run: its own command on its own ConfigMap, as plain processes here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from batchwright.cli.app import app
from batchwright.rundir.storage import Storage
from tests.support.object_store import ObjectStore
from tests.support.shared_run import all_ids, write_rows

ROWS = 600


def rendered(job: Path) -> dict[str, dict[str, Any]]:
    """The manifests by kind."""
    ended = CliRunner().invoke(app, ["k8s", "render", str(job), "--json"])
    assert ended.exit_code == 0, ended.output
    return {one["kind"]: one for one in json.loads(ended.stdout)["manifests"]}


def test_pods_of_a_rendered_job_finish_it_together(s3: ObjectStore, tmp_path: Path) -> None:
    bucket = s3.new_place()
    write_rows(Storage(f"{bucket}/in"), ROWS, files=2)
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump({
        "name": "reviews",
        "input": {"path": f"{bucket}/in/*.jsonl"},
        "engine": {"kind": "fake"},
        "sampling": {"max_tokens": 4},
        "output": {"path": f"{bucket}/out", "format": "jsonl"},
        "run": {"dir": f"{bucket}/run", "chunk_rows": 100, "pilot_rows": 0},
        "kubernetes": {"image": "registry.example/batchwright:1", "replicas": 3, "gpus": 0},
    }))  # fmt: skip
    found = rendered(job)
    (container,) = found["Job"]["spec"]["template"]["spec"]["containers"]
    mounted = tmp_path / "etc"
    mounted.mkdir()
    for name, text in found["ConfigMap"]["data"].items():
        (mounted / name).write_text(text)
    (folder,) = (
        mount["mountPath"] for mount in container["volumeMounts"] if "batchwright" in mount["mountPath"]
        and mount["mountPath"].startswith("/etc")
    )  # fmt: skip
    words = [word.replace(folder, str(mounted)) for word in container["command"] + container.get("args", [])]  # fmt: skip
    assert words[0] == "batchwright"
    own = {one["name"]: one["value"] for one in container.get("env", []) if "value" in one}
    scratch = {"BATCHWRIGHT_SCRATCH": str(tmp_path / "scratch"), "HOME": str(tmp_path)}
    pods = [
        subprocess.Popen(
            [sys.executable, "-m", "batchwright", *words[1:]],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **own, **scratch, "JOB_COMPLETION_INDEX": str(index)},
        )
        for index in range(found["Job"]["spec"]["parallelism"])
    ]  # fmt: skip
    ends = [(pod.communicate(timeout=240)[1], pod.returncode) for pod in pods]
    assert [code for _, code in ends] == [0, 0, 0], ends
    assert all_ids(Storage(f"{bucket}/out")) == [f"r{number}" for number in range(ROWS)]
