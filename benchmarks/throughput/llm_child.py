"""A process that holds vLLM's LLM class and runs workloads that come in on standard input.

One JSON object a line. First the engine's arguments, then a workload each; answers go to files,
figures to standard output. Every run begins with reading text from a file and ends with text on
disk, as with everybody else.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

import orjson


def make_llm(arguments: dict[str, Any]) -> Any:
    """vLLM's own class."""
    from vllm import LLM

    return LLM(**arguments)


def serve(make: Callable[[dict[str, Any]], Any]) -> None:
    """Start what the first line asks for, then run workloads until input ends."""
    # What vLLM and its processes print must not get between our lines.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    llm = make(json.loads(sys.stdin.readline()))
    send(replies, {"ready_at": time.time(), "kv_tokens": kv_tokens(llm)})
    for line in sys.stdin:
        send(replies, run(llm, json.loads(line)))


def send(replies: TextIO, value: dict[str, Any]) -> None:
    """One line to the harness."""
    replies.write(json.dumps(value) + "\n")


def run(llm: Any, command: dict[str, Any]) -> dict[str, Any]:
    """Read rows, generate or embed, write answers."""
    llm.reset_prefix_cache()
    preemptions, steps = count_preemptions(llm), count_steps(llm)
    began_at = time.time()
    rows = [json.loads(line) for line in Path(command["input"]).read_text().splitlines()]
    read_at = time.time()
    outputs = make_outputs(llm, rows, command)
    made_at = time.time()
    with Path(command["output"]).open("w", encoding="utf-8") as file:
        file.writelines(answer_lines(rows, outputs, command["task"]))
    after, steps_after = count_preemptions(llm), count_steps(llm)
    return {
        "began_at": began_at,
        "ended_at": time.time(),
        "read_s": read_at - began_at,
        "generate_s": made_at - read_at,
        "preemptions": None if after is None or preemptions is None else after - preemptions,
        "engine_steps": None if steps_after is None or steps is None else steps_after - steps,
    }


def make_outputs(llm: Any, rows: list[dict[str, Any]], command: dict[str, Any]) -> list[Any]:
    """Vectors or answers, as the command says."""
    if command["task"] == "embed":
        return embed(llm, rows)
    return generate(llm, rows, ignore_eos=command["ignore_eos"])


def generate(llm: Any, rows: list[dict[str, Any]], *, ignore_eos: bool) -> list[Any]:
    """Texts in file order, each with its own cap, which is its length where end tokens are ignored."""
    from vllm import SamplingParams

    params = [
        SamplingParams(temperature=0.0, max_tokens=row["max_tokens"], ignore_eos=ignore_eos)
        for row in rows
    ]
    outputs: list[Any] = llm.generate([row["prompt"] for row in rows], params, use_tqdm=False)
    return outputs


def embed(llm: Any, rows: list[dict[str, Any]]) -> list[Any]:
    """Texts to vectors."""
    outputs: list[Any] = llm.embed([row["prompt"] for row in rows], use_tqdm=False)
    return outputs


def answer_lines(rows: list[dict[str, Any]], outputs: Iterable[Any], task: str) -> Iterable[str]:
    """Rows of results as JSON lines."""
    for row, output in zip(rows, outputs, strict=True):
        line = {
            "id": row["id"],
            "prompt_tokens": len(output.prompt_token_ids),
            "cached_tokens": getattr(output, "num_cached_tokens", None),
        }
        if task == "embed":
            line |= {
                "embedding": output.outputs.embedding,
                "output_tokens": len(output.outputs.embedding),
            }
        else:
            answer = output.outputs[0]
            line |= {"text": answer.text, "finish_reason": answer.finish_reason,
                     "output_tokens": len(answer.token_ids)}  # fmt: skip
        yield orjson.dumps(line).decode() + "\n"  # json would take as long for vectors as embed


def count_preemptions(llm: Any) -> int | None:
    """Preemptions since the start; None when the engine keeps no statistics, as by default."""
    found = [one.value for one in metrics_of(llm) if one.name == "vllm:num_preemptions"]
    return int(sum(found)) if found else None


def count_steps(llm: Any) -> int | None:
    """Steps since the start; None when the engine keeps no statistics."""
    found = [one.count for one in metrics_of(llm) if one.name == "vllm:iteration_tokens_total"]
    return int(sum(found)) if found else None


def metrics_of(llm: Any) -> list[Any]:
    """Of its engine; none when it keeps no statistics, as by default."""
    try:
        found: list[Any] = llm.get_metrics()
    except (AssertionError, ValueError, RuntimeError):
        return []
    return found


def kv_tokens(llm: Any) -> int:
    """Tokens that the KV pool holds; 0 for what has none."""
    if not hasattr(llm, "llm_engine"):
        return 0
    cache = llm.llm_engine.vllm_config.cache_config
    told = getattr(cache, "kv_cache_size_tokens", None)
    return int(told or (cache.num_gpu_blocks or 0) * cache.block_size)


if __name__ == "__main__":
    serve(make_llm)
