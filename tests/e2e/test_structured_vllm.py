"""Structured output on real vLLM: what is said to be valid is, and the engine lives through it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.e2e.command import call

pytestmark = pytest.mark.vllm

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
STEPS = {
    "type": "object",
    "properties": {"step": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 50}},
    "required": ["step"],
    "additionalProperties": False,
}
CODE = "[A-Z]{2}-[0-9]{3,5}"
CHOICES = ["yes", "no", 'may "be"']
GRAMMAR = 'root ::= item ("," item){0,3}\nitem ::= [a-c] [0-9]'

# Of every ten rows: six by the job's schema, and one for each of these.
OWN: list[dict[str, Any]] = [
    {"structured_outputs": {"regex": CODE}},
    {"structured_outputs": {"choice": CHOICES}},
    {"structured_outputs": {"grammar": GRAMMAR}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": STEPS}}},
]
BAD: list[dict[str, Any]] = [
    {"structured_outputs": {"regex": "(unclosed"}},
    {"structured_outputs": {"grammar": "root ::= missing"}},
]


def is_valid(row: dict[str, Any], kind: int) -> bool:
    """Judged by other means than those of the product, as far as there are any."""
    text = row["text"]
    if kind in (0, 3):
        value = json.loads(text, parse_constant=lambda name: pytest.fail(name))
        jsonschema.validate(value, PERSON if kind == 0 else STEPS)
        return bool(row["parsed"] == value)
    if kind == 1:
        return bool(re.fullmatch(CODE, text))
    if kind == 2:
        return text in CHOICES
    return bool(re.fullmatch("[a-c][0-9](,[a-c][0-9]){0,3}", text))


def test_every_ok_row_is_valid(tiny_model: Path, tmp_path: Path) -> None:
    kinds = [0 if n % 10 < 6 else (1, 2, 4, 3)[n % 10 - 6] for n in range(40)]
    rows = [
        {"prompt": f"row {n} says hello", **(OWN[n % 10 - 6] if kind else {})}
        for n, kind in enumerate(kinds)
    ]
    rows += [{"prompt": "bad", **one} for one in BAD]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = {
        "input": {"path": "rows.jsonl"},
        "model": {"name": str(tiny_model), "dtype": "float32"},
        "sampling": {"temperature": 1.0, "max_tokens": 150, "schema_retries": 5,
                     "structured_outputs": {"json": PERSON}},
        "engine": {"options": {"max_model_len": 512, "kv_cache_memory_bytes": 64 << 20}},
        "run": {"dir": "run", "max_failed": 1, "stop_at_failed": 1, "pilot_rows": 0},
        "output": {"format": "jsonl"},
    }  # fmt: skip
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    summary = call("run", tmp_path / "job.yaml")
    (path,) = (tmp_path / "run" / "results").glob("*.jsonl")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert summary["rejected"] == 2
    assert {row["error_code"] for row in found[40:]} == {"bad_schema"}
    ok = [row for row in found if row["status"] == "ok"]
    wrong = [row for row in ok if not is_valid(row, kinds[row["row"]])]
    assert not wrong
    assert len(ok) >= 36, [row["error"] for row in found[:40] if row["error"]]
    assert {kinds[row["row"]] for row in ok} == {0, 1, 2, 3, 4}
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert "engine_restarted" not in events
