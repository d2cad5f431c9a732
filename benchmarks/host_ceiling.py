"""How fast could one engine be if the card took no time: what vLLM's own Python costs for each token.

    python -m benchmarks.host_ceiling --tiny 1m
    python -m benchmarks.host_ceiling --model FOLDER --rows 1024 --engine block_size=32

The engine is batchwright's own, in this process, with the model's forward pass replaced by nothing:
every row gets a token at once. What is left is scheduling, bookkeeping and the front-end, in CPU
seconds. On a GPU, scheduler and front-end are two processes that work side by side, so the slower of
the two is the ceiling of one engine, unless the card is slower still. Preparing the model's input is
not in it: that is the model runner's.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from benchmarks.throughput.tiny import make_model

from batchwright.core.ports import EngineSettings
from batchwright.core.records import Request
from batchwright.engines.flow import ahead_of

TOKEN = 7
ENGINE = {
    "load_format": "dummy",
    "max_num_batched_tokens": 16_384,
    "kv_cache_memory_bytes": 2 << 30,
}

# Where the time goes; what is in none of them is the rest of vLLM's loop, and ours.
PARTS = ("schedule", "update", "front-end")


class Stopwatch:
    """CPU seconds of this thread in functions that it is put around."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def around(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def timed(*args: Any, **more: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*args, **more)
            finally:
                self.seconds[part] += time.thread_time() - began

        return timed


def without_model(executor: Any) -> None:
    """Every row that is scheduled gets a token, at no cost."""
    from vllm.v1.outputs import ModelRunnerOutput

    last: list[Any] = []

    def answer(output: Any, non_block: bool) -> Any:
        if not non_block:
            return output
        future: Future[Any] = Future()
        future.set_result(output)
        return future

    def execute_model(scheduled: Any, non_block: bool = False) -> Any:
        names = list(scheduled.num_scheduled_tokens)
        places = {name: place for place, name in enumerate(names)}
        last[:] = [ModelRunnerOutput(names, places, [[TOKEN]] * len(names))]
        return answer(last[0], non_block)

    executor.execute_model = execute_model
    executor.sample_tokens = lambda _grammar, non_block=False: answer(last[0], non_block)


def requests(rows: int, prompt: int, output: int) -> Iterator[Request]:
    """Rows that share nothing."""
    sampling = json.dumps({"temperature": 0.0, "ignore_eos": True})
    for row in range(rows):
        ids = [50 + (row * 7 + place * place) % 900 for place in range(prompt)]
        yield Request(row, ids, output, sampling)


def run(engine: Any, rows: list[Request], at_once: int) -> tuple[float, int]:
    """CPU seconds and steps until every row has its answer."""
    began, done, sent, steps = time.thread_time(), 0, 0, 0
    while done < len(rows):
        room = at_once + ahead_of(at_once) - (sent - done)
        engine.submit(rows[sent : sent + room])
        sent = min(len(rows), sent + room)
        done += len(engine.step(0.0))
        steps += 1
    return time.thread_time() - began, steps


def measure(model: Path, options: dict[str, Any], given: argparse.Namespace) -> None:
    """Print microseconds a token, the best of several turns, and where they went."""
    from batchwright.engines.vllm import VllmEngine

    length = given.prompt + given.output + 16
    engine = VllmEngine()
    engine.start(EngineSettings("vllm", str(model), given.at_once, length, options=options))
    vllm: Any = engine._engine
    core = vllm.engine_core.engine_core
    without_model(core.model_executor)
    watch = Stopwatch()
    core.scheduler.schedule = watch.around("schedule", core.scheduler.schedule)
    core.scheduler.update_from_output = watch.around("update", core.scheduler.update_from_output)
    processor = vllm.output_processor
    processor.process_outputs = watch.around("front-end", processor.process_outputs)
    rows = list(requests(given.rows, given.prompt, given.output))
    tokens = given.rows * given.output
    best: tuple[float, dict[str, float], int] | None = None
    for _ in range(given.turns):
        watch.seconds.clear()
        seconds, steps = run(engine, rows, given.at_once)
        if best is None or seconds < best[0]:
            best = seconds, dict(watch.seconds), steps
    engine.stop()
    assert best is not None
    seconds, parts, steps = best
    micro = 1e6 / tokens
    print(
        f"{given.rows:,} rows of {given.prompt} + {given.output}, {given.at_once:,} at a time: ",
        end="",
    )
    print(f"{seconds * micro:.1f} us a token, {steps} steps, best of {given.turns}")
    for part in PARTS:
        print(f"  {part:<10} {parts[part] * micro:5.1f} us  {parts[part] / seconds:4.0%}")
    core_s = parts["schedule"] + parts["update"]
    print(f"  the scheduler alone allows {tokens / core_s:,.0f} tokens/s on this host")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="folder with config.json and tokenizer.json")
    parser.add_argument("--tiny", default="1m", help="make a small model of this size instead")
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--at-once", type=int, default=1024, help="max_num_seqs")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--engine", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the core in this process, to be timed
    options = dict(ENGINE)
    for option in given.engine:
        name, _, value = option.partition("=")
        options[name] = json.loads(value)
    with tempfile.TemporaryDirectory() as folder:
        measure(given.model or make_model(Path(folder), given.tiny), options, given)


if __name__ == "__main__":
    main()
