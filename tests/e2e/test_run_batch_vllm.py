"""The same file through vLLM's own run-batch and through ours: the same bodies, token for token.

Every start of vLLM costs the suite half a minute, so embeddings and the kill are compared only with
BATCHWRIGHT_COMPARE=all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import call, kill_all, start
from tests.support.tiny_bert import texts
from tests.support.tiny_model import make_tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

ALL = os.environ.get("BATCHWRIGHT_COMPARE") == "all"

CHAT_OPTIONS = ["--enforce-eager", "--max-model-len", "512", "--dtype", "float32"]
EMBED_OPTIONS = ["--enforce-eager", "--dtype", "float32"]

# Made anew with each run, or told by one of the two only.
VOLATILE = {"id", "created", "request_id", "prompt_tokens_details", "system_fingerprint"}
IN_WORDS = {"message", "param", "reason", "line"}

YES_OR_NO = {
    "type": "object", "properties": {"a": {"enum": ["yes", "no"]}}, "required": ["a"],
    "additionalProperties": False,
}  # fmt: skip


def user(text: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


BODIES: list[dict[str, Any]] = [
    {"messages": user("Tell a short story"), "max_tokens": 12},
    {"messages": user("number 3"), "max_completion_tokens": 8, "logprobs": True, "top_logprobs": 2},
    {"messages": user("stop here"), "max_tokens": 20, "stop": ["the", "a"]},
    {"messages": [{"role": "system", "content": "brief"}, *user([{"type": "text", "text": "é 你"}])],
     "max_tokens": 30},
    {"messages": user("choose"), "max_tokens": 10, "response_format": {
        "type": "json_schema", "json_schema": {"name": "x", "schema": YES_OR_NO}}},
    {"messages": user("two"), "temperature": 0.7, "seed": 5, "n": 2, "max_tokens": 6},
    {"messages": user("effort"), "max_tokens": 60, "reasoning_effort": "low"},
    {"messages": user("what the context leaves"), "stop_token_ids": list(range(3, 4000, 7))},
    {"messages": user("x " * 5000), "max_tokens": 10},
    {"messages": user("too cold"), "temperature": -1, "max_tokens": 10},
    {"messages": user("no sampling fields at all, seeded"), "seed": 3, "temperature": None,
     "max_tokens": 9},
]  # fmt: skip


def lines_of(url: str, bodies: list[dict[str, Any]], **common: Any) -> list[str]:
    return [
        json.dumps({"custom_id": f"r{number}", "method": "POST", "url": url,
                    "body": {**common, **body}})
        for number, body in enumerate(bodies)
    ]  # fmt: skip


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def essence(value: Any) -> Any:
    """What must be equal: no null fields, no ids; errors without their wording."""
    if isinstance(value, dict):
        left_out = VOLATILE | (IN_WORDS if value.get("error") or "reason" in value else set())
        if "code" in value and "message" in value:
            left_out |= IN_WORDS
        return {
            key: essence(item)
            for key, item in value.items()
            if key not in left_out and item is not None
        }
    if isinstance(value, list):
        return [essence(item) for item in value]
    return pytest.approx(value, abs=1e-4) if isinstance(value, float) else value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Path:
    """What vLLM's own run-batch made of the files in it."""
    folder = tmp_path_factory.mktemp("compare")
    make_tiny_model(folder / "chat")
    defaults = folder / "chat" / "generation_config.json"
    own = json.loads(defaults.read_text()) | {"repetition_penalty": 1.1, "top_p": 0.9}
    defaults.write_text(json.dumps(own))
    (folder / "bert").symlink_to(tiny_bert)
    chat = lines_of("/v1/chat/completions", BODIES, model="chat", temperature=0)
    write(folder / "chat.jsonl", chat)
    chat.insert(2, '{"custom_id": "broken", "method":')
    write(folder / "with-broken.jsonl", chat)
    inputs = [{"input": text} for text in texts(6)]
    inputs[2]["encoding_format"] = "base64"
    write(folder / "embed.jsonl", lines_of("/v1/embeddings", inputs, model="bert"))
    words = ["-i", "chat.jsonl", "-o", "chat.out", "--model", "chat", *CHAT_OPTIONS]
    if ALL:
        words += ["--", "-i", "embed.jsonl", "-o", "embed.out", "--model", "bert", *EMBED_OPTIONS]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "fork",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.vllm_reference", *words],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (folder / "chat.out").exists(), done.stderr[-4000:]
    return folder


def test_chat_with_a_broken_line_and_a_kill(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = [
        "run-batch", "-i", "with-broken.jsonl", "-o", "ours.out", "--model", "chat", *CHAT_OPTIONS,
        "--set", "run.chunk_rows=4", "--set", "run.lease_s=5", "--max-num-seqs", "4",
    ]  # fmt: skip
    if ALL:
        process = start(*options, cwd=folder)
        deadline = time.monotonic() + 300
        while not list(folder.glob("ours.out.run/receipts/chunk-*")):
            assert time.monotonic() < deadline, "nothing was committed"
            time.sleep(0.01)
        kill_all(process)
        assert not (folder / "ours.out").exists()
    call(*options, cwd=folder)
    ours, theirs = read(folder / "ours.out"), read(folder / "chat.out")
    broken = ours.pop(2)
    assert (broken["response"]["status_code"], broken["error"]["error"]["line"]) == (400, 3)
    assert [line["custom_id"] for line in ours] == [f"r{row}" for row in range(len(BODIES))]
    assert sum(line["error"] is None for line in theirs) == len(BODIES) - 2
    for one, other in zip(ours, theirs, strict=True):
        assert essence(one) == essence(other)


@pytest.mark.skipif(not ALL, reason="needs BATCHWRIGHT_COMPARE=all")
def test_embeddings(folder: Path) -> None:
    call(
        "run-batch", "-i", "embed.jsonl", "-o", "vectors.out", "--model", "bert", *EMBED_OPTIONS,
        cwd=folder,
    )  # fmt: skip
    ours, theirs = read(folder / "vectors.out"), read(folder / "embed.out")
    assert sum(line["error"] is None for line in theirs) >= 3
    for one, other in zip(ours, theirs, strict=True):
        assert essence(one) == essence(other)
