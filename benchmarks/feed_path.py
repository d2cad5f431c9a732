"""CPU cost per row of the path that feeds an engine and drains it, without a GPU.

    python -m benchmarks.feed_path --rows 20000 --prompt 150 --output 8
    python -m benchmarks.feed_path --rows 2048 --prompt 128 --output 128 --vllm MODEL

Without `--vllm`, a worker runs prepared rows on the fake engine in a child process. The fake's own
work is measured apart, in process, and taken off the child's. With `--vllm`, one vLLM engine in
this process shows what each row costs to add and each token to step; a tiny model will do.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import logging
import pstats
import random
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from benchmarks.pipeline import make_tokenizer, write_rows

from batchwright.config.job import Job
from batchwright.config.load import make_job
from batchwright.core.outcomes import Outcome
from batchwright.core.ports import EngineInfo, EngineSettings
from batchwright.core.records import Request
from batchwright.engines.fake import FakeEngine
from batchwright.engines.feeder import Supervisor
from batchwright.engines.process import EngineProcess
from batchwright.foresight.survey import survey
from batchwright.order import Sequencer
from batchwright.prepare import Preparer
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.manifest import open_manifest
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage
from batchwright.tokens.hf import HfTokenizer
from batchwright.worker import Worker

VOCABULARY = 4096
FAKE = "batchwright.engines.fake:FakeEngine"


class MeasuredProcess(EngineProcess):
    """Reads the child's CPU time when the engine is up and before it stops."""

    ready_s = 0.0
    used_s = 0.0
    child: psutil.Process | None = None

    def start(self, settings: EngineSettings) -> EngineInfo:
        info = super().start(settings)
        self.child = psutil.Process(info.pid)
        self.ready_s = cpu_of(self.child)
        return info

    def stop(self) -> None:
        if self.child is not None:
            self.used_s = cpu_of(self.child) - self.ready_s
            self.child = None
        super().stop()


def cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


class TimedSupervisor(Supervisor):
    """Notes the main thread's CPU time, the process's and the clock from start to stop."""

    began = (0.0, 0.0, 0.0)
    ended = (0.0, 0.0, 0.0)

    def start(self) -> EngineInfo:
        info = super().start()
        self.began = clocks()
        return info

    def stop(self) -> None:
        self.ended = clocks()
        super().stop()


def clocks() -> tuple[float, float, float]:
    return time.monotonic(), time.process_time(), time.thread_time()


def make_rows(count: int, prompt: int) -> list[list[int]]:
    rng = random.Random(0)
    return [rng.choices(range(300, VOCABULARY), k=prompt) for _ in range(count)]


def prepare(folder: Path, rows: list[list[int]], output: int, overrides: list[str]) -> Job:
    """A prepared and ordered run whose prompts are token ids."""
    data = folder / "rows.jsonl"
    lines = (json.dumps({"id": f"r{n}", "prompt": ids}) for n, ids in enumerate(rows))
    data.write_text("".join(f"{line}\n" for line in lines))
    write_rows(folder / "text.jsonl", 6000)
    model = make_tokenizer(folder / "model", folder / "text.jsonl")
    settings: dict[str, Any] = {
        "input": {"path": str(data)},
        "engine": {"kind": "fake"},
        "model": {"name": str(model)},
        "sampling": {"max_tokens": output, "ignore_eos": True},
        "run": {"pilot_rows": 0},
    }
    job = make_job(settings, dict(one.split("=", 1) for one in overrides))
    manifest = survey(job)
    storage = Storage(folder / "run")
    open_manifest(storage, manifest)
    tokenizer = HfTokenizer.load(str(model))
    preparer = Preparer(storage, manifest, job, tokenizer)
    for split in manifest.splits:
        list(preparer.prepare(split))
    sequencer = Sequencer(storage, manifest)
    while not sequencer.finished:
        sequencer.advance()
    return job


def measure_worker(args: argparse.Namespace) -> dict[str, float]:
    """The whole worker, with the fake engine in a child that answers at once."""
    folder = Path(tempfile.mkdtemp(prefix="batchwright-feed-"))
    try:
        job = prepare(folder, make_rows(args.rows, args.prompt), args.output, args.set)
        return run_worker(args, folder, job)
    finally:
        shutil.rmtree(folder)


def run_worker(args: argparse.Namespace, folder: Path, job: Job) -> dict[str, float]:
    storage = Storage(folder / "run")
    settings = EngineSettings("fake", "", args.running, 8192, (), VOCABULARY, {})
    engine = MeasuredProcess(FAKE, log_path=folder / "engine.log")
    supervisor = TimedSupervisor(lambda: engine, settings)
    tokenizer = HfTokenizer.load(str(folder / "model"))
    worker = Worker(storage, job, "w", SystemClock(), supervisor, tokenizer)
    profile = cProfile.Profile() if args.profile else None
    if profile:
        profile.enable()
    worker.run(threading.Event())
    if profile:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    state = RunState(storage)
    state.refresh_order()
    state.refresh_receipts()
    assert state.counts().ok == args.rows, state.counts()
    wall_s, process_s, main_s = (
        end - begin for begin, end in zip(supervisor.began, supervisor.ended, strict=True)
    )
    fake_s = measure_fake(args)
    unit = 1e6 / args.rows
    return {
        "rows_per_s": args.rows / wall_s,
        "worker_main_thread_us_per_row": main_s * unit,
        "worker_all_threads_us_per_row": process_s * unit,
        "child_us_per_row": engine.used_s * unit,
        "of_it_the_fake_itself": fake_s * unit,
        "child_overhead_us_per_row": (engine.used_s - fake_s) * unit,
    }


def measure_fake(args: argparse.Namespace) -> float:
    """CPU seconds of the fake engine alone, fed as the feeder does."""
    engine = FakeEngine()
    engine.start(EngineSettings("fake", "", args.running, 8192, (), VOCABULARY, {}))
    rows = make_rows(args.rows, args.prompt)
    sampling = '{"ignore_eos":true,"temperature":0.0}'
    requests = [Request(row, ids, args.output, sampling) for row, ids in enumerate(rows)]
    began = time.process_time()
    for first in range(0, len(requests), args.running):
        engine.submit(requests[first : first + args.running])
        while engine.step(0.0):
            pass
    return time.process_time() - began


def measure_vllm(args: argparse.Namespace) -> dict[str, float]:
    """Adding rows and stepping them in this process, with the model's own time within."""
    from batchwright.engines.vllm import VllmEngine

    options = {"dtype": "float32", "kv_cache_memory_bytes": 1 << 30}
    length = args.prompt + args.output + 16
    engine = VllmEngine()
    began = time.monotonic()
    engine.start(
        EngineSettings("vllm", str(args.vllm), args.running, length, (2,), VOCABULARY, options)
    )
    logging.disable(logging.CRITICAL)
    print(f"engine up after {time.monotonic() - began:.1f} s")
    sampling = '{"ignore_eos":true,"temperature":0.0}'
    rows = make_rows(args.rows, args.prompt)
    requests = [Request(row, ids, args.output, sampling) for row, ids in enumerate(rows)]
    profile = cProfile.Profile() if args.profile else None
    if profile:
        profile.enable()
    added_at = time.process_time()
    engine.submit(requests)
    add_s = time.process_time() - added_at
    if profile:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        profile.clear()
    outcomes: list[Outcome] = []
    began = time.process_time()
    if profile:
        profile.enable()
    while len(outcomes) < args.rows:
        outcomes += engine.step(0.0)
    if profile:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    step_s = time.process_time() - began
    gauges = engine.gauges()
    engine.stop()
    tokens = sum(len(outcome.token_ids) for outcome in outcomes)
    assert gauges.output_tokens == tokens, (gauges, tokens)
    return {
        "add_us_per_row": add_s / args.rows * 1e6,
        "steps": gauges.steps,
        "step_ms": step_s / gauges.steps * 1e3,
        "step_us_per_token": step_s / tokens * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--prompt", type=int, default=150, help="tokens of each prompt")
    parser.add_argument("--output", type=int, default=8, help="tokens of each answer")
    parser.add_argument("--running", type=int, default=1024, help="max_num_seqs")
    parser.add_argument("--vllm", type=Path, default=None, help="a model folder")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    found = measure_vllm(args) if args.vllm else measure_worker(args)
    for name, value in found.items():
        print(f"{name:32} {value:12,.1f}")


if __name__ == "__main__":
    main()
