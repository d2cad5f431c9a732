"""A process that answers a file's rows with Daft's `prompt` on its provider `vllm-prefix-caching`.

Runs in the peers' Python: it imports nothing of ours. What to do is in a JSON file, the argument.
Daft returns texts only, so what the engine counted is written beside them.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

COUNTED = {
    "requests": "vllm:request_success_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "output_tokens": "vllm:generation_tokens_total",
    "cached_tokens": "vllm:prefix_cache_hits_total",
    "preemptions": "vllm:num_preemptions_total",
    "engine_steps": "vllm:iteration_tokens_total_count",
}


def announced(start: Callable[..., None], mark: str) -> Callable[..., None]:
    """The start of Daft's executor, with a line once its engine is up: Daft itself tells nobody."""

    @functools.wraps(start)
    def start_and_tell(*args: Any, **options: Any) -> None:
        start(*args, **options)
        print(mark, flush=True)

    return start_and_tell


def answer(request: dict[str, Any]) -> None:
    """Read rows, prompt, write ids and texts."""
    import daft
    from daft.execution.vllm import LocalVLLMExecutor
    from daft.functions import prompt
    from vllm import SamplingParams

    LocalVLLMExecutor.__init__ = announced(LocalVLLMExecutor.__init__, request["mark"])
    params = SamplingParams(
        temperature=0.0, max_tokens=request["max_tokens"], ignore_eos=request["ignore_eos"]
    )
    text = prompt(
        daft.col("prompt"),
        provider="vllm-prefix-caching",
        model=request["model"],
        engine_args=request["engine"],
        generate_args={"sampling_params": params},
    )
    rows = daft.read_json(request["input"]).select("id", text.alias("text"))
    rows.write_json(request["output"])


def counted(samples: list[tuple[str, float]]) -> dict[str, int]:
    """The engine's counters by our names; each is a sum over engines and reasons."""
    return {
        ours: int(sum(value for name, value in samples if name == theirs))
        for ours, theirs in COUNTED.items()
    }


def samples_of_this_process() -> list[tuple[str, float]]:
    """What vLLM has counted, as Prometheus would read it."""
    from prometheus_client import REGISTRY

    return [(one.name, one.value) for metric in REGISTRY.collect() for one in metric.samples]


def main() -> None:
    """Answer what the request file asks for, then write what was counted."""
    request = json.loads(Path(sys.argv[1]).read_text())
    answer(request)
    Path(request["counts"]).write_text(json.dumps(counted(samples_of_this_process())))


if __name__ == "__main__":
    main()
