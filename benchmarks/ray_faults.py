"""Ten seeded runs on a real Ray cluster, with an actor, an engine and the driver killed in each.

Each run must end complete: `verify` passes, and the rows are those of a run by the local executor.

    python benchmarks/ray_faults.py --model DIR --work DIR [--runs 10] [--rows 5000] [--engine fake]

It starts a cluster of its own on this machine and stops it at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "while",
    "rain",
    "fell",
    "over",
    "quiet",
    "hills",
    "and",
    "nobody",
    "counted",
    "the",
    "hours",
]
RUNNING_TIMEOUT_S = 900.0
OPTIONS: dict[str, dict[str, Any]] = {
    "vllm": {"max_model_len": 512, "dtype": "float32", "max_num_seqs": 32,
             "kv_cache_memory_bytes": 64 << 20, "omp_num_threads": 1},
    "fake": {"max_num_seqs": 32, "seconds_per_step": 0.2, "rows_per_step": 8},
}  # fmt: skip


def write_rows(path: Path, rows: int) -> None:
    """Prompts of mixed lengths; one row in a hundred is bad, in one of four ways."""
    chance = random.Random(5)
    bad = ['{"id": "b%d", "prompt": ""}', '{"id": "b%d"}', '{"id": "b%d", "prompt": ', '["b%d"]']
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            if number % 100 == 50:
                file.write(bad[number // 100 % 4] % number + "\n")
                continue
            text = " ".join(chance.choices(WORDS, k=chance.randint(4, 60)))
            file.write(json.dumps({"id": f"r{number}", "prompt": text}) + "\n")


def command(args: argparse.Namespace, run_dir: Path, *more: str) -> list[str]:
    settings = {f"engine.options.{key}": value for key, value in OPTIONS[args.engine].items()}
    settings |= {"run.replicas": 2, "run.chunk_rows": 100, "run.pilot_rows": 0, "run.order": "file",
                 "prompt.chat": "false", "run.max_failed": 0.05, "run.lease_s": 5}  # fmt: skip
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return [sys.executable, "-m", "batchwright", "run", str(args.work / "rows.jsonl"),
            "--model", str(args.model), "--max-tokens", str(args.max_tokens), "--engine", args.engine,
            "--dir", str(run_dir), "--json", *sets, *more]  # fmt: skip


def infer_workers(run_dir: Path) -> list[dict[str, Any]]:
    """The last heartbeat of each worker with an engine that is up and has a living process."""
    found = []
    for path in (run_dir / "workers").glob("infer-*.json"):
        with contextlib.suppress(orjson.JSONDecodeError, FileNotFoundError):
            state = orjson.loads(path.read_bytes())
            alive = Path(f"/proc/{state['pid']}").exists() and not state.get("ended")
            if alive and state.get("phase") == "running" and state.get("engine"):
                found.append(state)
    return found


def wait_for_worker(run_dir: Path, driver: subprocess.Popen[bytes]) -> dict[str, Any] | None:
    """A worker that runs; None if the run is over before there is one."""
    deadline = time.monotonic() + RUNNING_TIMEOUT_S
    while driver.poll() is None and time.monotonic() < deadline:
        running = infer_workers(run_dir)
        if running:
            return random.choice(running)
        time.sleep(0.1)
    return None


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def one_run(args: argparse.Namespace, seed: int, env: dict[str, str]) -> dict[str, Any]:
    """Kill an actor, an engine and the driver at random moments, then run to the end."""
    random.seed(seed)
    run_dir = args.work / f"run-{seed}"
    log = (args.work / f"run-{seed}.log").open("ab")
    line = command(args, run_dir, "--set", "run.executor=ray", "-o", str(run_dir / "results"))
    started = time.monotonic()
    driver = subprocess.Popen(line, env=env, stdout=log, stderr=log)
    killed = []
    for what in ("actor", "engine", "driver"):
        worker = wait_for_worker(run_dir, driver)
        if worker is None:
            break
        time.sleep(random.uniform(0.0, args.spread_s))
        worker = wait_for_worker(run_dir, driver) or worker
        done = len(list((run_dir / "receipts").glob("*.json")))
        victim = {"actor": worker["pid"], "engine": worker["engine"]["pid"], "driver": driver.pid}
        if driver.poll() is None:
            kill(victim[what])
            killed.append(f"{what} at {done} receipts")
    driver.wait(900)
    receipts = {path.name: path.read_bytes() for path in (run_dir / "receipts").glob("*.json")}
    resumed = time.monotonic()
    ending = subprocess.run(
        line, env=env, stdout=subprocess.PIPE, stderr=log, timeout=900, check=False
    )
    kept = all(
        (run_dir / "receipts" / name).read_bytes() == data for name, data in receipts.items()
    )
    verified = subprocess.run(
        [sys.executable, "-m", "batchwright", "verify", str(run_dir), "--json"],
        env=env, capture_output=True, check=False,
    )  # fmt: skip
    return {
        "seed": seed, "killed": killed, "exit": ending.returncode,
        "verify": verified.returncode, "finished_chunks_kept": kept,
        "chunks_before_resume": len(receipts), "differing_rows": differences(args, run_dir),
        "resume_s": round(time.monotonic() - resumed, 1), "wall_s": round(time.monotonic() - started, 1),
    }  # fmt: skip


def results(folder: Path) -> dict[int, tuple[Any, ...]]:
    table = pq.ParquetDataset(folder).read(
        columns=["row", "id", "status", "text", "error_code", "prompt_tokens", "completion_tokens"]
    )
    return {row["row"]: tuple(row.values()) for row in table.to_pylist()}


def differences(args: argparse.Namespace, run_dir: Path) -> int:
    """Rows that are not as the local executor has them; missing and surplus ones count too."""
    local, other = results(args.work / "local" / "results"), results(run_dir / "results")
    return sum(local.get(row) != other.get(row) for row in local.keys() | other.keys())


def start_cluster(args: argparse.Namespace, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """Ray gives itself 30 s to start, too few on a busy machine: it is tried several times."""
    log = args.work / "cluster.log"
    for _ in range(8):
        with log.open("wb") as output:
            head = subprocess.Popen(
                ["ray", "start", "--head", "--block", f"--port={args.port}", "--num-cpus=4",
                 "--num-gpus=0", "--include-dashboard=false", "--object-store-memory=100000000",
                 "--disable-usage-stats"],
                env={**env, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        while head.poll() is None:
            if b"Ray runtime started" in log.read_bytes():
                return head
            time.sleep(0.5)
    raise SystemExit(f"no cluster: see {log}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--engine", choices=sorted(OPTIONS), default="vllm")
    parser.add_argument("--spread-s", type=float, default=12.0, help="most seconds between kills")
    parser.add_argument("--port", type=int, default=26379)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    write_rows(args.work / "rows.jsonl", args.rows)
    env = {
        **os.environ,
        "RAY_ADDRESS": f"127.0.0.1:{args.port}",
        "RAY_AUTH_MODE": "disabled",
        "RAY_memory_monitor_refresh_ms": "0",
    }
    if not (args.work / "local" / "_SUCCESS").is_file():
        line = command(args, args.work / "local", "-o", str(args.work / "local" / "results"))
        subprocess.run(line, env=env, check=False, timeout=900)
    head = start_cluster(args, env)
    try:
        for seed in range(args.first_seed, args.first_seed + args.runs):
            print(json.dumps(one_run(args, seed, env)), flush=True)
    finally:
        head.terminate()
        head.wait(30)


if __name__ == "__main__":
    main()
