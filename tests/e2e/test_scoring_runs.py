"""Scoring jobs from end to end on the fake engine: killed, resumed, repeated, verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.command import call


def results(run_dir: Path) -> list[dict[str, Any]]:
    text = (run_dir / "results/results-00000.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_lists_pairs_and_bad_rows_come_out_once_each_in_order(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for number in range(300):
        if number % 3 == 0:
            rows.append({"query": f"q{number % 9}", "document": "same"})
        elif number % 3 == 1:
            rows.append({"query": "q", "documents": [f"d{at}" for at in range(number % 5 + 1)]})
        else:
            rows.append({"query": "q", "document": None})
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = [
        "run", path, "--engine", "fake", "--model", "", "--set", "task=score",
        "--set", "output.format=jsonl", "--set", "run.max_failed=1", "--set", "run.chunk_rows=100",
    ]  # fmt: skip
    summary = call(*options, "--dir", tmp_path / "run")
    assert (summary["ok"], summary["rejected"]) == (200, 100)
    made = results(tmp_path / "run")
    for number, row in enumerate(made):
        if number % 3 == 0:
            assert (row["scores"], isinstance(row["score"], float)) == (None, True)
            assert row["score"] == made[number % 9]["score"], "the same pair, the same score"
        elif number % 3 == 1:
            assert (row["score"], len(row["scores"])) == (None, number % 5 + 1)
        else:
            assert row["error_code"] == "missing_prompt"
    assert call("verify", tmp_path / "run")["passed"]
    call(*options, "--dir", tmp_path / "once", "--set", "run.repeat_once=true")
    assert results(tmp_path / "once") == made


def test_a_classification_says_its_labels_in_the_manifest(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "label": "x"}\n{"prompt": "b"}\n')
    call(
        "run", path, "--engine", "fake", "--model", "", "--dir", tmp_path / "run",
        "--set", "task=classify", "--set", "scoring.labels=[bad, good]",
        "--set", "output.format=jsonl",
    )  # fmt: skip
    for row in results(tmp_path / "run"):
        assert row["score"] == max(row["scores"])
        assert row["label"] == ["bad", "good"][row["scores"].index(row["score"])]
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest["job"]["scoring"]["labels"] == ["bad", "good"]
