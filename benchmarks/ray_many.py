"""Millions of rows of fake-engine work on a local Ray: the driver's memory, chunks per second, resume.

The driver is killed after a while, started again, and stopped when the time is up.

    python benchmarks/ray_many.py --work DIR [--rows 10000000] [--first-minutes 5] [--minutes 15]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

READ_EVERY_S = 1.0


def write_rows(path: Path, rows: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, rows, 10_000):
            stop = min(rows, start + 10_000)
            file.writelines(
                f'{{"id": "r{n}", "prompt": "row {n} says hello"}}\n' for n in range(start, stop)
            )


def start(args: argparse.Namespace) -> subprocess.Popen[bytes]:
    settings = {"run.executor": "ray", "run.replicas": 2, "run.prepare_processes": args.preparers,
                "run.pilot_rows": 0, "run.order": "file", "run.lease_s": 10}  # fmt: skip
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    log = (args.work / "many.log").open("ab")
    return subprocess.Popen(
        [sys.executable, "-m", "batchwright", "run", str(args.work / "rows.jsonl"), "--engine", "fake",
         "--max-tokens", "16", "--dir", str(args.work / "run"), *sets],
        env={**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_memory_monitor_refresh_ms": "0"},
        stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip


def receipts(args: argparse.Namespace) -> int:
    folder = args.work / "run" / "receipts"
    return sum(1 for _ in folder.glob("*.json")) if folder.is_dir() else 0


def watch(args: argparse.Namespace, driver: subprocess.Popen[bytes], until: float) -> list[Any]:
    """Seconds, receipts and the driver's memory in MiB, once a second."""
    began = time.monotonic()
    readings = []
    while driver.poll() is None and time.monotonic() < until:
        try:
            memory = psutil.Process(driver.pid).memory_info().rss >> 20
        except psutil.NoSuchProcess:
            break
        readings.append((round(time.monotonic() - began, 1), receipts(args), memory))
        time.sleep(READ_EVERY_S)
    return readings


def described(readings: list[Any], before: int) -> dict[str, Any]:
    first = next((at for at, done, _ in readings if done > before), None)
    last = readings[-1]
    work = [reading for reading in readings if reading[1] > before]
    chunks = last[1] - before
    seconds = last[0] - work[0][0] if work else 0.0
    memory = [reading[2] for reading in work]
    return {
        "seconds": last[0], "seconds_to_first_new_chunk": first, "chunks": chunks,
        "chunks_per_s": round(chunks / seconds, 3) if seconds else None,
        "driver_mib": {"first": memory[0], "middle": memory[len(memory) // 2], "last": memory[-1],
                       "peak": max(memory)} if memory else None,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument(
        "--first-minutes", type=float, default=5.0, help="until the driver is killed"
    )
    parser.add_argument("--minutes", type=float, default=15.0, help="after that, at most")
    parser.add_argument("--preparers", type=int, default=1)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    write_rows(args.work / "rows.jsonl", args.rows)
    driver = start(args)
    readings = watch(args, driver, time.monotonic() + 60 * args.first_minutes)
    print(json.dumps({"start": 1, **described(readings, 0)}), flush=True)
    if driver.poll() is None:
        os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    before = receipts(args)
    driver = start(args)
    readings = watch(args, driver, time.monotonic() + 60 * args.minutes)
    print(json.dumps({"start": 2, **described(readings, before)}), flush=True)
    ended = driver.poll()
    if ended is None:
        driver.terminate()
        ended = driver.wait(120)
    rows = sum(
        json.loads(path.read_bytes())["rows"]
        for path in (args.work / "run" / "receipts").glob("*.json")
    )
    print(json.dumps({"exit": ended, "rows_committed": rows, "of": args.rows}))


if __name__ == "__main__":
    main()
