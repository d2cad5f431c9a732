"""The main job on real vLLM: every good row answered, every bad row explained, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import call, start

pytestmark = pytest.mark.vllm

ROWS = 2000

# Ten kinds, twice each: the line as it stands in the file, and the code it must get.
BAD_LINES = [
    ('{"id": "x0", "prompt": "not closed', "bad_json"),
    ('["x1", "a list"]', "not_an_object"),
    ('{"id": "x2", "note": "no prompt at all"}', "missing_prompt"),
    ('{"id": "x3", "prompt": ""}', "empty_prompt"),
    ('{"id": "r4", "prompt": "this id is taken"}', "duplicate_id"),
    ('{"id": "x5", "prompt": "hot", "temperature": NaN}', "bad_sampling"),
    ('{"id": "x6", "prompt": "many", "best_of": 3}', "unsupported"),
    ('{"id": "x7", "prompt": "' + "word " * 3000 + '"}', "prompt_too_long"),
    ('{"id": "x8", "prompt": [5, 99999999]}', "bad_token_ids"),
    ('{"id": "x9", "prompt": "both", "messages": [{"role": "user", "content": "x"}]}',
     "ambiguous_prompt"),
]  # fmt: skip


def write_rows(path: Path) -> dict[int, str]:
    """2,000 lines; returns row number to expected code of the bad ones."""
    expected: dict[int, str] = {}
    lines = []
    for row in range(ROWS):
        if row % 100 == 50:
            line, code = BAD_LINES[row // 100 % 10]
            if row >= ROWS // 2:
                line = line.replace('"x', '"y', 1)
            expected[row] = code
            lines.append(line)
        else:
            lines.append(json.dumps({"id": f"r{row}", "prompt": f"row {row} says hello", "k": row}))
    path.write_text("\n".join(lines) + "\n")
    return expected


def options(data: Path, model: Path, run_dir: Path) -> list[object]:
    return [
        "run", data, "--model", model, "--max-tokens", "6", "--dir", run_dir, "--format", "jsonl",
        "--set", "engine.options.max_model_len=512", "--set", "engine.options.max_num_seqs=64",
        "--set", "engine.options.kv_cache_memory_bytes=67108864", "--set", "model.dtype=float32",
        "--set", "run.max_failed=0.05", "--set", "run.chunk_rows=200",
    ]  # fmt: skip


def read_results(run_dir: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted((run_dir / "results").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def check(run_dir: Path, expected: dict[int, str]) -> None:
    rows = read_results(run_dir)
    assert [row["row"] for row in rows] == list(range(ROWS))
    assert Counter(row["status"] for row in rows) == {"ok": 1980, "rejected": 20}
    assert {r["row"]: r["error_code"] for r in rows if r["status"] != "ok"} == expected
    for row in rows:
        if row["status"] == "ok":
            assert row["k"] == row["row"], "the answer stands beside its own input"
            assert row["completion_tokens"] >= 1
            assert isinstance(row["text"], str)
    proof = call("verify", run_dir)
    assert proof["passed"]
    assert (proof["rows_in"], proof["ok"], proof["rejected"]) == (2000, 1980, 20)


def test_good_rows_are_answered_and_bad_rows_explained(tiny_model: Path, tmp_path: Path) -> None:
    data, run_dir = tmp_path / "rows.jsonl", tmp_path / "run"
    expected = write_rows(data)
    summary = call(*options(data, tiny_model, run_dir))
    assert (summary["ok"], summary["failed"], summary["rejected"]) == (1980, 0, 20)
    check(run_dir, expected)
    receipts = [json.loads(one.read_bytes()) for one in (run_dir / "receipts").iterdir()]
    counted = sum(sum(one["first_tokens"].values()) for one in receipts)
    assert counted == 1980, "every answer began with a first token"


def test_the_engine_is_killed_in_the_middle(tiny_model: Path, tmp_path: Path) -> None:
    data, run_dir = tmp_path / "rows.jsonl", tmp_path / "run"
    expected = write_rows(data)
    process = start(*options(data, tiny_model, run_dir))
    engine_pid = wait_for_engine(run_dir)
    os.kill(engine_pid, signal.SIGKILL)
    assert process.wait(timeout=240) == 0
    check(run_dir, expected)
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    assert any(event["event"] == "engine_restarted" for event in events)


def wait_for_engine(run_dir: Path) -> int:
    """Pid of the engine's process, once rows have come out of it but not all."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        time.sleep(0.05)
        for path in (run_dir / "workers").glob("infer-*.json"):
            state = json.loads(path.read_text() or "{}")
            engine = state.get("engine")
            if engine and state.get("completion_tokens", 0) > 0:
                return int(engine["pid"])
    raise AssertionError("the engine never came up")
