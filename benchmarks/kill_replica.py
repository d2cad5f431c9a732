"""Kill one of a run's engines half-way: is anything missing, and how much time was lost.

    python benchmarks/kill_replica.py rows.jsonl --model FOLDER --set run.replicas=2

Runs the rows once in peace and once with a SIGKILL to one worker and its engine when the share of
`--at` is committed; compares the time from the first engine up to the last receipt.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil


def start(options: argparse.Namespace, folder: Path) -> subprocess.Popen[bytes]:
    shutil.rmtree(folder, ignore_errors=True)
    command = [
        sys.executable, "-m", "batchwright", "run", str(options.rows), "--model", options.model,
        "--dir", str(folder), "--format", "jsonl", "--json",
    ]  # fmt: skip
    for setting in options.set:
        command += ["--set", setting]
    with folder.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def events(folder: Path) -> list[dict[str, Any]]:
    path = folder / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def work_s(folder: Path) -> float:
    up: float = min(event["at"] for event in events(folder) if event["event"] == "engine_up")
    last: float = max(path.stat().st_mtime for path in (folder / "receipts").iterdir())
    return last - up


def committed(folder: Path) -> int:
    receipts = folder / "receipts"
    if not receipts.is_dir():
        return 0
    return sum(json.loads(one.read_bytes())["rows"] for one in receipts.glob("*.json"))


def kill_one(folder: Path, at_rows: int, process: subprocess.Popen[bytes]) -> str:
    """Kill the first worker with an engine, children and all, when so many rows are committed."""
    while process.poll() is None:
        if committed(folder) >= at_rows:
            for beat in sorted((folder / "workers").glob("infer-*.json")):
                worker = json.loads(beat.read_bytes())
                if (
                    worker.get("role") == "infer"
                    and worker.get("phase") == "running"
                    and not worker.get("ended")
                ):
                    tree = psutil.Process(worker["pid"])
                    for one in [*tree.children(recursive=True), tree]:
                        os.kill(one.pid, signal.SIGKILL)
                    return beat.stem
        time.sleep(0.2)
    raise SystemExit("the run ended before anybody was killed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--at", type=float, default=0.4)
    parser.add_argument("--dir", type=Path, default=Path("runs/kill"))
    parser.add_argument("--quiet-s", type=float, help="seconds of an undisturbed run, if known")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    total = sum(1 for line in options.rows.open() if line.strip())
    quiet_s = options.quiet_s
    if quiet_s is None:
        if start(options, options.dir / "quiet").wait():
            raise SystemExit(f"the quiet run failed: {options.dir / 'quiet.log'}")
        quiet_s = work_s(options.dir / "quiet")
    folder = options.dir / "killed"
    process = start(options, folder)
    began = time.time()
    name = kill_one(folder, int(options.at * total), process)
    killed = time.time()
    code = process.wait()
    verify = subprocess.run(
        [sys.executable, "-m", "batchwright", "verify", str(folder), "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    ids = [
        json.loads(line)["id"]
        for one in (folder / "results").glob("*.jsonl")
        for line in one.open()
    ]
    print(
        f"rows {total:,}; quiet {quiet_s:.1f} s; killed {name} {killed - began:.1f} s after the start"
    )
    print(f"exit {code}; verify exit {verify.returncode} {verify.stdout.strip()[:300]}")
    print(f"ids {len(ids):,}, distinct {len(set(ids)):,}; work {work_s(folder):.1f} s")
    ups = [
        round(event["at"] - killed, 1) for event in events(folder) if event["event"] == "engine_up"
    ]
    print(f"engines up, seconds before and after the kill: {ups}")


if __name__ == "__main__":
    main()
