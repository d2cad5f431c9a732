"""Embeddings from end to end: the vectors are transformers' own, and none is lost."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.e2e.command import call, kill_all, result_bytes, start
from tests.support.tiny_bert import CONTEXT, HIDDEN, texts

COUNT = 300
EMBED = ["--set", "task=embed", "--set", "prompt.column=text"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    lines = [json.dumps({"id": f"r{row}", "text": text}) for row, text in enumerate(texts(COUNT))]
    lines[7] = '{"id": "r7"}'
    path.write_text("\n".join(lines) + "\n")
    return path


def transformers_own(model: Path, rows: Path, ahead: str = "") -> np.ndarray[Any, Any]:
    """Mean-pooled vectors, one text at a time: slow and plain."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model))
    encoder = AutoModel.from_pretrained(str(model), dtype=torch.float32).eval()
    made = []
    with torch.inference_mode():
        for line in rows.read_text().splitlines():
            text = ahead + json.loads(line).get("text", "")
            ids = tokenizer(text, truncation=True, max_length=CONTEXT, return_tensors="pt")
            made.append(encoder(input_ids=ids["input_ids"]).last_hidden_state[0].mean(0).numpy())
    return np.stack(made)


def embed(rows: Path, model: Path | str, run_dir: Path, *settings: str) -> dict[str, Any]:
    options = [item for setting in settings for item in ("--set", setting)]
    return call(
        "run", rows, "--model", model, "--dir", run_dir, *EMBED, "--set", "run.max_failed=1",
        *options,
    )  # fmt: skip


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("kind", "settings", "dimensions", "ahead"),
    [
        ("torch", [], HIDDEN, ""),
        ("torch", ["embedding.dimensions=16", "embedding.prompt='query: '"], 16, "query: "),
        pytest.param(
            "vllm",
            ["embedding.dimensions=16", "model.dtype=float32"],
            16,
            "",
            # The vectors that vLLM makes are compared in test_scores.py too, by their cosines.
            marks=[
                pytest.mark.vllm,
                pytest.mark.skipif(
                    "BATCHWRIGHT_SLOW" not in os.environ, reason="a minute; BATCHWRIGHT_SLOW=1"
                ),
            ],
        ),
    ],
)
def test_the_vectors_are_transformers_own(
    kind: str, settings: list[str], dimensions: int, ahead: str,
    rows: Path, tiny_bert: Path, tmp_path: Path,
) -> None:  # fmt: skip
    run_dir = tmp_path / "run"
    summary = embed(
        rows,
        tiny_bert,
        run_dir,
        f"engine.kind={kind}",
        "plan.over_length=truncate_right",
        *settings,
    )
    assert (summary["ok"], summary["failed"], summary["rejected"]) == (COUNT - 1, 0, 1)
    table = pq.read_table(run_dir / "results")
    column = table.schema.field("embedding").type
    assert (column.list_size, column.value_type) == (dimensions, pa.float32())
    assert table.column("embedding")[7].as_py() is None
    assert table.column("error_code")[7].as_py() == "missing_field"
    good = [row for row in range(COUNT) if row != 7]
    made = np.array(table.column("embedding").take(good).to_pylist())
    wanted = transformers_own(tiny_bert, rows, ahead)[good, :dimensions]
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    assert (made * wanted).sum(axis=1).min() > 0.9999
    lengths = np.array(table.column("prompt_tokens").to_pylist())[good]
    assert lengths.max() == CONTEXT, "some texts are too long"
    truncated = np.array(table.column("truncated").to_pylist())[good]
    assert 0 < truncated.sum() < COUNT / 2
    assert (lengths[truncated.astype(bool)] == CONTEXT).all()
    assert call("verify", run_dir)["passed"]


@pytest.mark.vllm
def test_the_engine_that_is_chosen_makes_the_same_results_as_if_it_were_named(
    rows: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    chosen, named = tmp_path / "chosen", tmp_path / "named"
    # An option that only torch has: without it a machine with no GPU takes vLLM.
    common = ["plan.over_length=truncate_right", "engine.options.device=cpu"]
    embed(rows, tiny_bert, chosen, *common)
    embed(rows, tiny_bert, named, *common, "engine.kind=torch")
    assert engine_of(chosen) == "torch"
    assert "kind: torch" in (chosen / "job.yaml").read_text()
    assert result_bytes(chosen) == result_bytes(named)
    again = embed(rows, tiny_bert, chosen, *common, "engine.kind=auto")
    assert again["ok"] == COUNT - 1
    refusal = call(
        "run", rows, "--model", tiny_bert, "--dir", chosen, "--engine", "vllm", *EMBED, exit_code=2
    )
    assert "engine.kind: torch -> vllm" in json.dumps(refusal)


def engine_of(run_dir: Path) -> str:
    events = map(json.loads, (run_dir / "events.jsonl").read_text().splitlines())
    (name,) = {event["name"] for event in events if event["event"] == "engine_up"}
    return str(name)


def test_a_text_over_the_limit_is_rejected_unless_it_may_be_cut(
    rows: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    embed(rows, tiny_bert, tmp_path / "run", "engine.kind=fake", "output.format=jsonl")
    results = (tmp_path / "run/results/results-00000.jsonl").read_text().splitlines()
    codes = {row["row"]: row["error_code"] for row in map(json.loads, results)}
    assert codes[7] == "missing_field"
    too_long = [row for row, code in codes.items() if code == "prompt_too_long"]
    assert 0 < len(too_long) < COUNT / 2
    assert len(codes) == COUNT


def test_killed_and_started_again_no_vector_is_lost(rows: Path, tmp_path: Path) -> None:
    many = tmp_path / "rows.jsonl"
    many.write_text("".join(
        json.dumps({"id": f"r{row}", "text": f"text number {row}"}) + "\n" for row in range(6000)
    ))  # fmt: skip
    options = [
        "run", many, "--engine", "fake", "--model", "", *EMBED, "--set", "run.chunk_rows=300",
        "--set", "engine.options.seconds_per_step=0.05", "--set", "run.lease_s=5",
    ]  # fmt: skip
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    call(*options, "--dir", whole)
    process = start(*options, "--dir", broken)
    wait_for_receipts(broken)
    kill_all(process)
    assert not (broken / "_SUCCESS").exists()
    call(*options, "--dir", broken)
    assert call("verify", broken)["passed"]
    assert result_bytes(broken) == result_bytes(whole)


def wait_for_receipts(run_dir: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if len(list((run_dir / "receipts").glob("chunk-*"))) >= 2:
            return
        time.sleep(0.02)
    raise AssertionError("nothing was committed")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["sampling.temperature=0.5"], "task: embed samples nothing"),
        (["prompt.system=Be brief."], "reads plain text"),
        (["plan.max_hours=1"], "need a pilot"),
    ],
)
def test_what_an_embedding_has_no_use_for_is_refused(
    settings: list[str], message: str, rows: Path, tmp_path: Path
) -> None:
    options = [item for setting in settings for item in ("--set", setting)]
    refusal = call(
        "run", rows, "--engine", "fake", "--model", "", "--dir", tmp_path / "run", *EMBED, *options,
        exit_code=2,
    )  # fmt: skip
    assert message in json.dumps(refusal)
