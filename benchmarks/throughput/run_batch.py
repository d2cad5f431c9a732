"""vLLM's own batch command as a system under test: `python -m vllm.entrypoints.openai.run_batch`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from benchmarks.throughput.answers import check_answers, of_openai_batch, read_answers
from benchmarks.throughput.ours import wait
from benchmarks.throughput.records import Case, Measured, RunProblem
from benchmarks.throughput.usage import Usage

# The line of its log that comes right after the engine is up, in 0.25.1 as in 0.32.0.
READY = b"Reading batch from"
PLAIN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


class RunBatch:
    """The command in a process of its own, with its own defaults or with batchwright's options."""

    def __init__(self, name: str, *, tuned: bool) -> None:
        self.name = name
        self._tuned = tuned

    def run(self, case: Case, repeat: int, timeout_s: float) -> Measured:
        """One run.

        Raises:
            RunProblem: it failed, took too long, or its answers are wrong.
        """
        if case.workload.task != "generate":
            raise RunProblem("embeddings through run-batch are not measured")
        model = plain_model(case.model, case.folder / "plain-model")
        data = batch_file(case, model)
        output = case.folder / f"{self.name}-{repeat}.jsonl"
        log = case.folder / f"{self.name}-{repeat}.log"
        began_at = time.time()
        process = subprocess.Popen(
            self.command(case, model, data, output),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # The moment when the engine is up is only told at this level.
            env={
                **os.environ,
                "VLLM_LOGGING_LEVEL": "INFO",
                "VLLM_NO_USAGE_STATS": "1",
                **case.environment,
            },
        )
        assert process.stdout is not None
        ready: list[float] = []
        watched = (process.stdout, log, READY, ready)
        reader = threading.Thread(target=keep_log, args=watched, daemon=True)
        reader.start()
        with Usage(process.pid) as usage:
            code = wait(process, timeout_s)
        ended_at = time.time()
        reader.join(5.0)
        if code != 0:
            raise RunProblem(f"exit code {code}, see {log}")
        answers = read_answers([output], of_openai_batch)
        cached = check_answers(case.workload.rows, answers, case.workload.task)
        written_at = output.stat().st_mtime
        return Measured(
            ready_s=ready[0] - began_at if ready else None,
            work_s=written_at - ready[0] if ready else None,
            wall_s=ended_at - began_at,
            cpu_s=round(sum(usage.cpu_by_role().values()), 2),
            peak_rss_bytes=usage.peak_rss_bytes,
            cached_tokens=cached,
            details={"work_cpu_s": usage.spent_between(ready[0], written_at) if ready else None},
        )

    def close(self) -> None:
        """Nothing stays after a run."""

    def command(self, case: Case, model: Path, data: Path, output: Path) -> list[str]:
        """The command line; options by the names that both tested versions have."""
        options = {**case.conditions, **(case.tuned if self._tuned else {})}
        options.pop("omp_num_threads", None)
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.run_batch", "-i", str(data),
            "-o", str(output), "--model", str(model), "--enable-prompt-tokens-details",
        ]  # fmt: skip
        return command + [text for name, value in options.items() for text in flag(name, value)]


def flag(name: str, value: Any) -> list[str]:
    """An engine option as vLLM's command line spells it."""
    option = name.replace("_", "-")
    if value is True:
        return [f"--{option}"]
    if value is False:
        return [f"--no-{option}"]
    if value is None:
        return []
    if isinstance(value, list):
        return [f"--{option}", *map(str, value)]
    return [f"--{option}", json.dumps(value) if isinstance(value, dict) else str(value)]


def keep_log(lines: IO[bytes], log: Path, mark: bytes, ready: list[float]) -> None:
    """Write a log, and note when the line came that says, by its mark, that the engine is up."""
    with log.open("wb") as file:
        for line in lines:
            if not ready and mark in line:
                ready.append(time.time())
            file.write(line)


def plain_model(model: Path, folder: Path) -> Path:
    """The same model with a chat template that adds nothing, since run-batch knows only chats."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in model.iterdir():
        if path.name not in ("tokenizer_config.json", "chat_template.jinja"):
            (folder / path.name).symlink_to(path.resolve())
    source = model / "tokenizer_config.json"
    config = json.loads(source.read_text()) if source.is_file() else {}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": PLAIN}))
    (folder / "chat_template.jinja").write_text(PLAIN)
    return folder


def batch_file(case: Case, model: Path) -> Path:
    """The case's rows in the OpenAI batch format."""
    path = case.data.with_suffix(".batch.jsonl")
    if path.is_file():
        return path
    with case.data.open() as lines, path.open("w") as file:
        for row in map(json.loads, lines):
            body = {
                "model": str(model),
                "messages": [{"role": "user", "content": row["prompt"]}],
                "max_tokens": row["max_tokens"],
                "temperature": 0,
                "ignore_eos": case.workload.hidden is None,
            }
            line = {
                "custom_id": row["id"],
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": body,
            }
            file.write(json.dumps(line) + "\n")
    return path
