"""What an embedding costs per row beside the model itself, and two engines side by side on a CPU.

    python benchmarks/embed_path.py --rows 20000 --model FOLDER
    python benchmarks/embed_path.py --rows 4000 --model FOLDER --engine torch

Without `--engine`, a run on the fake engine: CPU time per row of each stage. With it, only that
engine, in this process, on the rows' token ids.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from batchwright.config.job import Job
from batchwright.config.load import make_job
from batchwright.core.outcomes import Outcome
from batchwright.core.records import Request
from batchwright.deliver import write_results
from batchwright.engines.feeder import Supervisor
from batchwright.engines.process import EngineProcess
from batchwright.engines.wire import pack_outcomes, pack_requests, unpack_outcomes, unpack_requests
from batchwright.equip.equipment import engine_settings, job_tokenizer
from batchwright.foresight.survey import survey
from batchwright.order import Sequencer
from batchwright.prepare import Preparer
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.manifest import Manifest, open_manifest
from batchwright.rundir.prepared import make_requests, read_slices
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage
from batchwright.wiring import engine_target
from batchwright.worker import Worker


def write_rows(path: Path, rows: int, words: int) -> None:
    rng = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    known = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(2000)]
    with path.open("w") as file:
        for row in range(rows):
            size = min(4 * words, max(1, int(rng.lognormvariate(0, 0.8) * words)))
            text = " ".join(rng.choices(known, k=size))
            file.write(json.dumps({"id": f"r{row}", "text": text}) + "\n")


def timed(name: str, rows: int, work: Callable[[], Any]) -> Any:
    cpu, wall = time.process_time(), time.perf_counter()
    made = work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(f"{name:34} {cpu / rows * 1e6:8.1f} us CPU a row  {rows / wall:10,.0f} rows/s wall")
    return made


def prepared_run(folder: Path, options: argparse.Namespace) -> tuple[Storage, Manifest, Job]:
    data = folder / "rows.jsonl"
    write_rows(data, options.rows, options.words)
    job = make_job(
        {
            "input": {"path": str(data)},
            "prompt": {"column": "text"},
            "task": "embed",
            "model": {"name": options.model, "dtype": options.dtype},
            "engine": {"kind": options.engine or "fake", "options": json.loads(options.options)},
            "plan": {"over_length": "truncate_right"},
            "embedding": {"dimensions": options.dimensions},
        },
        {},
    )
    storage = Storage(folder / "run")
    manifest, _ = open_manifest(storage, survey(job))
    job = Job.model_validate(manifest.job)
    preparer = Preparer(storage, manifest, job, job_tokenizer(job))
    timed("prepare (parse, check, tokenise)", options.rows,
          lambda: [list(preparer.prepare(split)) for split in manifest.splits])  # fmt: skip
    sequencer = Sequencer(storage, manifest)
    while not sequencer.finished:
        sequencer.advance()
    return storage, manifest, job


def all_requests(storage: Storage) -> list[Request]:
    state = RunState(storage)
    state.refresh_order()
    found = []
    for chunk in state.chunks:
        found += list(make_requests(*read_slices(storage, chunk.slices)))
    return found


def run_fake(storage: Storage, manifest: Manifest, job: Job, rows: int) -> None:
    tokenizer = job_tokenizer(job)
    settings = engine_settings(manifest, job, tokenizer)
    settings = replace(settings, max_num_seqs=4096)
    requests = all_requests(storage)
    timed("requests through the pipe's form", rows,
          lambda: unpack_requests(pack_requests(requests)))  # fmt: skip
    assert settings.embedding is not None
    vector = bytes(settings.embedding.width_bytes)
    outcomes = [Outcome(one.row, [], embedding=vector) for one in requests]
    timed("outcomes through the pipe's form", rows,
          lambda: unpack_outcomes(pack_outcomes(outcomes)))  # fmt: skip
    log_path = storage.root / "engine.log"

    def make_engine() -> EngineProcess:
        return EngineProcess(engine_target("fake", "embed"), log_path=log_path)

    clock = SystemClock()
    worker = Worker(storage, job, "infer-1", clock, Supervisor(make_engine, settings), tokenizer)
    timed("worker with commits (not the engine)", rows, lambda: worker.run(threading.Event()))
    (path,) = timed("results in Parquet", rows, lambda: write_results(storage, manifest, job))
    print(f"{'':34} {path.stat().st_size / rows:8.0f} bytes a row in the results")


def run_engine(storage: Storage, manifest: Manifest, job: Job, rows: int) -> None:
    settings = engine_settings(manifest, job, job_tokenizer(job))
    module, _, name = engine_target(job.engine.kind, "embed").partition(":")
    engine = getattr(import_module(module), name)()
    engine.start(settings)
    requests = all_requests(storage)
    tokens = sum(len(one.token_ids) for one in requests)
    warm, requests = requests[:200], requests[200:]
    drain(engine, warm, settings.max_num_seqs)
    started = time.perf_counter()
    timed(f"{job.engine.kind} engine", len(requests),
          lambda: drain(engine, requests, settings.max_num_seqs))  # fmt: skip
    seconds = time.perf_counter() - started
    print(f"{'':34} {tokens / seconds:8,.0f} tokens/s, {tokens / rows:.0f} tokens a row")
    engine.stop()


def drain(engine: Any, requests: list[Request], held: int) -> None:
    sent = done = 0
    while done < len(requests):
        batch = requests[sent : sent + held - (sent - done)]
        if batch:
            engine.submit(batch)
            sent += len(batch)
        done += len(engine.step(0.0))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--words", type=int, default=40)
    parser.add_argument("--model", required=True)
    parser.add_argument("--engine", choices=["torch", "vllm"])
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--dimensions", type=int)
    parser.add_argument("--options", default="{}", help="engine options as JSON")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="embed-path-"))
    try:
        storage, manifest, job = prepared_run(folder, options)
        run = run_engine if options.engine else run_fake
        run(storage, manifest, job, options.rows)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
