"""Adapters from the job file to the results, and what a changed adapter does to a resume."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.command import call
from tests.support.tiny_lora import make_tiny_lora


def test_adapters_from_the_job_file_to_the_results(tmp_path: Path) -> None:
    make_tiny_lora(tmp_path / "loras" / "one", seed=1)
    rows = [
        {"id": "plain", "prompt": "the same"},
        {"id": "again", "prompt": "the same"},
        {"id": "one", "prompt": "the same", "adapter": "one"},
        {"id": "two", "prompt": "the same", "model": "two"},
        {"id": "none", "prompt": "the same", "adapter": "three"},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "job.yaml").write_text(
        "input: {path: rows.jsonl}\n"
        "engine: {kind: fake}\n"
        "model: {adapters: {one: loras/one, two: org/two}}\n"
        "output: {format: jsonl}\n"
        "run: {dir: out, repeat_once: true, max_failed: 0.5}\n"
    )
    call("run", tmp_path / "job.yaml")
    (results,) = (tmp_path / "out" / "results").glob("*.jsonl")
    found = {row["id"]: row for row in map(json.loads, results.read_text().splitlines())}
    assert found["plain"]["text"] == found["again"]["text"]
    assert len({found[name]["text"] for name in ("plain", "one", "two")}) == 3
    assert found["none"]["error_code"] == "unknown_adapter"

    make_tiny_lora(tmp_path / "loras" / "one", seed=2, rank=4)
    again = call("run", tmp_path / "job.yaml", exit_code=2)
    assert "model.adapters.one" in again["error"]["message"]
