"""Structured output from the command line: retries, hopeless rows, and constraints that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import call

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}
HUGE = {"type": "array", "minItems": 2_000_000_000, "items": {"type": "integer"}}


def write_job(folder: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = {
        "input": {"path": "rows.jsonl"},
        "sampling": {"structured_outputs": {"json": SCHEMA}, "max_tokens": 60},
        "engine": {"kind": "fake", "options": options},
        "run": {"max_failed": 1, "stop_at_failed": 1, "dir": "run"},
        "output": {"format": "jsonl"},
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(job))
    return path


def results(folder: Path) -> list[dict[str, Any]]:
    (path,) = (folder / "run" / "results").glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def schema_of(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


def test_answers_are_checked_and_asked_for_again(tmp_path: Path) -> None:
    own: list[dict[str, Any]] = [
        {}, {}, {}, {},
        schema_of({"type": "obj"}),
        {"structured_outputs": {"regex": "[a-z]+("}},
        {"structured_outputs": {"regex": "[a-c]{2}"}},
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"structured_outputs": {"regex": "(a|aa)+(b|bb)*(a|aa)+c"}},
    ]  # fmt: skip
    rows = [{"prompt": f"row {n}", **extra} for n, extra in enumerate(own)]
    texts = {
        "0": ['{"n": 1}'], "1": ['{"n": 10}', '{"n": "\u0015"}', '{"n": 2}'], "2": ['{"m": 1}'],
        "3": ['{"n": 1' + " " * 100], "6": ["abc", "ab"], "7": ["maybe", "no"],
        "8": ["a" * 50],
    }  # fmt: skip
    job = write_job(tmp_path, rows, row_texts=texts)
    summary = call("run", job)
    assert (summary["ok"], summary["failed"], summary["rejected"]) == (4, 3, 2)
    found = results(tmp_path)
    assert [row["row"] for row in found] == list(range(9))
    assert [row["parsed"] for row in found] == [{"n": 1}, {"n": 2}, *[None] * 7]
    assert [row["attempts"] for row in found] == [1, 3, 3, 1, None, None, 2, 2, 1]
    assert [row["error_code"] for row in found] == [
        None, None, "invalid_output", "invalid_output", "bad_schema", "bad_schema", None, None,
        "invalid_output",
    ]  # fmt: skip
    assert "'n' is a required property" in found[2]["error"]
    assert found[2]["text"] == '{"m": 1}'
    assert "raise sampling.max_tokens" in found[3]["error"]
    assert "took longer" in found[8]["error"]
    assert found[6]["text"] == "ab"
    assert call("verify", tmp_path / "run")["passed"]


@pytest.mark.vllm
def test_a_schema_that_explodes_costs_its_own_row_only(tmp_path: Path) -> None:
    rows = [{"prompt": "a", **schema_of(HUGE)}, {"prompt": "b"}, {"prompt": "c", **schema_of(HUGE)}]
    summary = call("validate", write_job(tmp_path, rows))
    assert summary["rejections"]["bad_schema"]["rows"] == 2


@pytest.mark.parametrize("command", ["validate", "run", "plan"])
def test_a_wrong_constraint_of_the_job_ends_it_before_anything_starts(
    tmp_path: Path, command: str
) -> None:
    job = write_job(tmp_path, [{"prompt": "a"}])
    wrong = 'sampling.structured_outputs={"json": {"properties": {"n": {"type": "numbr"}}}}'
    ended = call(command, job, "--set", wrong, exit_code=2)
    assert "numbr" in json.dumps(ended)
    assert not (tmp_path / "run").exists()
