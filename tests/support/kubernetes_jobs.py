"""Job files for the tests of Kubernetes, and what is rendered from them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from batchwright import deploying
from batchwright.cli.options import job_for_elsewhere

EXAMPLES = Path(__file__).parents[2] / "examples" / "kubernetes"


def job_file(folder: Path, changes: Mapping[str, Any] | None = None) -> Path:
    """A job that renders, with dotted keys changed; None takes a key out."""
    data: dict[str, Any] = {
        "name": "reviews",
        "input": {"path": "s3://data/*.jsonl"},
        "prompt": {"column": "text"},
        "model": {"name": "Qwen/Qwen2.5-7B-Instruct"},
        "run": {"dir": "s3://runs/{name}"},
        "kubernetes": {
            "image": "registry.example/batchwright:0.1.0",
            "namespace": "batch",
            "replicas": 3,
            "gpus": 1,
            "gpu_products": ["NVIDIA-L4"],
        },
    }
    for dotted, value in (changes or {}).items():
        *sections, key = dotted.split(".")
        place = data
        for section in sections:
            place = place.setdefault(section, {})
        if value is None:
            place.pop(key, None)
        else:
            place[key] = value
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def rendered(path: Path, **settings: str) -> list[dict[str, Any]]:
    """The manifests of a job file."""
    job, run_dir = job_for_elsewhere(
        str(path), {f"kubernetes.{k}": v for k, v in settings.items()}, []
    )
    return deploying.render(job, run_dir, threading.Event(), lambda _: None)[1]


def one(manifests: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The only object of a kind."""
    (found,) = [manifest for manifest in manifests if manifest["kind"] == kind]
    return found
