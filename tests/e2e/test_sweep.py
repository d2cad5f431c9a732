"""`pilot --sweep` as a person types it, on the fake engine and on vLLM's CPU build."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from tests.e2e.command import call


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATCHWRIGHT_CACHE", str(tmp_path / "cache"))
    rng = random.Random(3)
    path = tmp_path / "rows.jsonl"
    prompts = ["word " * rng.randint(1, 40) for _ in range(400)]
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return path


def test_a_sweep_follows_the_pilot_and_the_run_goes_on(rows: Path, tmp_path: Path) -> None:
    options = [rows, "--engine", "fake", "--max-tokens", "16", "--dir", tmp_path / "run",
               "--set", "engine.options.seconds_per_step=0.01",
               "--set", "engine.options.max_num_seqs=16"]  # fmt: skip
    report = call("pilot", *options, "--rows", 100, "--sweep", "--sweep-minutes", "1")
    sweep = report["sweep"]
    assert report["rows"] == 100
    assert sweep["kept"]["max_num_seqs"] == 32
    assert sweep["worth"] > 0
    assert {"max_num_seqs": 16} in [point["settings"] for point in sweep["points"]]
    assert len(list((tmp_path / "cache" / "sweeps").glob("fake-*.json"))) == 1
    assert call("run", *options)["ok"] == 400


@pytest.mark.vllm
@pytest.mark.timeout(600)
@pytest.mark.skipif("BATCHWRIGHT_SLOW" not in os.environ, reason="two minutes; BATCHWRIGHT_SLOW=1")
def test_a_sweep_on_vllm(rows: Path, tmp_path: Path, tiny_model: Path) -> None:
    options = [rows, "--model", tiny_model, "--max-tokens", "12", "--dir", tmp_path / "run",
               "--set", "engine.options.max_num_seqs=32", "--set", "model.dtype=float32",
               "--set", "engine.options.max_model_len=512",
               "--set", "engine.options.kv_cache_memory_bytes=67108864"]  # fmt: skip
    report = call("pilot", *options, "--rows", 100, "--sweep", "--sweep-minutes", "1.5")
    sweep = report["sweep"]
    tried = [point["settings"]["max_num_seqs"] for point in sweep["points"]]
    assert tried[:5] == [4, 8, 16, 32, 64]
    assert sweep["engine"].startswith("vllm ")
    assert all(point["output_tokens_per_s"] > 0 for point in sweep["points"])
    (kept,) = (tmp_path / "cache" / "sweeps").glob("vllm-cpu-*.json")
    assert json.loads(kept.read_text())["settings"] == sweep["kept"]
