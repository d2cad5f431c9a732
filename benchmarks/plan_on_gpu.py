"""Hold the plan's arithmetic against a real GPU: `python benchmarks/plan_on_gpu.py kv MODEL...`.

    kv     starts each model with the planned settings, at two memory settings, and compares the
           KV capacity that vLLM reports with the predicted one
    sweep  runs one workload at several values of max_num_seqs around the planned one

Model folders need config.json and a tokenizer; weights are dummies, since neither memory nor speed
depends on their values. Answers have forced lengths (`ignore_eos`).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from batchwright.core.plan import GpuFacts, Plan
from batchwright.core.ports import EngineSettings
from batchwright.core.records import Request
from batchwright.core.workload import LengthHistogram, Workload
from batchwright.engines.bench import Bench, Pace
from batchwright.engines.feeder import Supervisor
from batchwright.engines.process import EngineProcess
from batchwright.pilot.replay import replay
from batchwright.plan.gpus import find_gpu
from batchwright.plan.model_facts import model_facts
from batchwright.plan.search import make_plan

GREEDY = '{"ignore_eos":true,"temperature":0.0}'


def plan_for(model: Path, gpu: GpuFacts, workload: Workload, **user: Any) -> Plan:
    config = json.loads((model / "config.json").read_text())
    facts = model_facts(config, weight_bytes=None)
    return make_plan(
        facts, gpu, 1, workload, user=user, usd_per_gpu_hour=None, linked_by_nvlink=False
    )


def settings_for(model: Path, plan: Plan) -> EngineSettings:
    options = {**plan.engine_options(), "load_format": "dummy"}
    vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
    return EngineSettings(
        kind="vllm",
        model=str(model),
        max_num_seqs=options.pop("max_num_seqs"),
        max_model_len=options.pop("max_model_len"),
        vocab_size=vocab_size,
        options=options,
    )


def engine_process() -> EngineProcess:
    log = Path(tempfile.gettempdir()) / "plan_on_gpu.engine.log"
    return EngineProcess("batchwright.engines.vllm:VllmEngine", log_path=log)


def requests_for(workload: Workload, vocab_size: int, seed: int = 0) -> list[Request]:
    rng = random.Random(seed)
    lengths = [
        n
        for n, c in zip(workload.prompts.lengths, workload.prompts.counts, strict=True)
        for _ in range(c)
    ]
    outputs = workload.outputs or LengthHistogram.of([workload.max_tokens])
    answers = [n for n, c in zip(outputs.lengths, outputs.counts, strict=True) for _ in range(c)]
    rng.shuffle(lengths)
    rng.shuffle(answers)
    return [
        Request(
            row,
            [rng.randrange(1000, min(vocab_size, 150_000)) for _ in range(length)],
            answers[row % len(answers)],
            GREEDY,
        )
        for row, length in enumerate(lengths)
    ]


def compare_kv(models: list[Path], gpu: GpuFacts) -> None:
    workload = Workload(LengthHistogram.of([200, 500, 1500] * 4000), None, max_tokens=500)
    print("| model | utilization | predicted tokens | reported | error | start s |")
    print("|---|---|---|---|---|---|")
    for model in models:
        for utilization in (0.92, 0.5):
            plan = plan_for(model, gpu, workload, gpu_memory_utilization=utilization)
            engine = engine_process()
            began = time.monotonic()
            info = engine.start(settings_for(model, plan))
            seconds = time.monotonic() - began
            engine.stop()
            predicted = plan.as_json()["kv_capacity_tokens"]
            error = predicted / info.kv_tokens - 1
            print(
                f"| {model.name} | {utilization} | {predicted:,} | {info.kv_tokens:,} | "
                f"{error:+.1%} | {seconds:.0f} |",
                flush=True,
            )


def sweep(model: Path, gpu: GpuFacts, workload: Workload, values: list[int]) -> None:
    """One engine with the largest value; the others are had by feeding it fewer rows at a time."""
    plan = plan_for(model, gpu, workload)
    planned = int(plan.value("max_num_seqs"))
    prediction = plan.prediction.rows_per_s
    print(f"{model.name}: planned max_num_seqs {planned}, predicted {prediction:,.0f} rows/s")
    tried = sorted({planned, *values})
    settings = settings_for(model, plan_for(model, gpu, workload, max_num_seqs=tried[-1]))
    requests = requests_for(workload, settings.vocab_size)
    each = (workload.prompts.total + sum(one.max_tokens for one in requests)) / len(requests)
    bench = Bench([Supervisor(engine_process, settings)], replay(requests))
    began = time.monotonic()
    bench.start()
    print(f"engine up after {time.monotonic() - began:.0f} s", flush=True)
    print("| max_num_seqs | rows/s | output tokens/s | KV use | preemptions | seconds |")
    print("|---|---|---|---|---|---|", flush=True)
    rates: dict[int, float] = {}
    for value in tried:
        pace = Pace(min_s=4.0, turns=1.0)
        reading = bench.measure(value, pace, math.inf, threading.Event())
        assert reading is not None, "there is no deadline"
        rates[value] = (reading.prompt_tokens_per_s + reading.output_tokens_per_s) / each
        print(
            f"| {value} | {rates[value]:,.1f} | {reading.output_tokens_per_s:,.0f} | "
            f"{reading.kv_use:.0%} | {reading.preemptions} | {reading.seconds:.1f} |",
            flush=True,
        )
    bench.stop()
    print(f"planned {planned}: {rates[planned] / max(rates.values()):.1%} of the best")


def lognormal(rng: random.Random, mean: float, sigma: float, low: int, high: int) -> int:
    mu = math.log(mean) - sigma * sigma / 2
    return max(low, min(high, round(rng.lognormvariate(mu, sigma))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["kv", "sweep"])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--values", type=int, nargs="*", default=[64, 128, 256, 512, 1024])
    args = parser.parse_args()
    gpu = find_gpu(args.gpu)
    if args.what == "kv":
        compare_kv(args.models, gpu)
        return
    rng = random.Random(1)
    prompts = [lognormal(rng, 300, 0.6, 16, 2000) for _ in range(args.rows)]
    outputs = LengthHistogram.of(lognormal(rng, 128, 0.7, 4, 1000) for _ in range(args.rows))
    workload = Workload(LengthHistogram.of(prompts), outputs, max_tokens=1000)
    for model in args.models:
        sweep(model, gpu, replace(workload), args.values)


if __name__ == "__main__":
    main()
