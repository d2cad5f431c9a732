"""Runs with one spoiled setting each: does the diagnosis find it, and is its advice worth what it says?

Each run is diagnosed, what its first finding about time says is changed, and it is run again.

    python benchmarks/spoiled.py --model DIR --work DIR --scenarios small-batch,context [--scale 100]

`small-batch` runs 8 rows at a time; `context` asks for 32,768 tokens with a pool of 40,960;
`tokenising` has long prompts that share most of their tokens and one tokenising thread.
`small-replica` needs two cards: the second one's engine runs half as many rows at a time (no setting
of a run does that, so there is no advice to follow).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "rain", "fell", "over", "quiet", "hills"]
KV_BYTES_OF_7B = 57_344  # a token of Qwen2.5-7B: 28 layers x 2 x 4 heads x 128 x 2 bytes


class Scenario(NamedTuple):
    """Rows, prompt tokens that all share, tokens of their own, answer; what is spoiled; environment."""

    rows: int
    shared: int
    own: int
    output: int
    spoiled: dict[str, Any]
    environment: dict[str, str]


SCENARIOS = {
    "small-batch": Scenario(400, 0, 128, 128, {"engine.options.max_num_seqs": 8}, {}),
    "context": Scenario(
        5_000, 0, 128, 128,
        {"engine.options.max_model_len": 32_768,
         "engine.options.kv_cache_memory_bytes": 40_960 * KV_BYTES_OF_7B}, {},
    ),
    "tokenising": Scenario(
        36_000, 1_900, 100, 1,
        {"run.prepare_processes": 1, "engine.options.enforce_eager": True,
         "engine.options.block_size": 64}, {"RAYON_NUM_THREADS": "1"},
    ),
    "small-replica": Scenario(
        6_000, 0, 128, 128, {"engine.options.max_num_seqs": 128},
        {"SMALLER_BATCH_ON_CARD": "1", "PYTHONPATH": str(Path(__file__).parent / "smaller_batch")},
    ),
}  # fmt: skip


def with_paths(ours: dict[str, str]) -> dict[str, str]:
    """The environment, with these variables; PYTHONPATH is put before what is there."""
    both = {**os.environ, **ours}
    paths = [ours.get("PYTHONPATH"), os.environ.get("PYTHONPATH")]
    return {**both, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def write_rows(path: Path, scenario: Scenario, scale: int) -> None:
    """Every word is a token, about."""
    chance = random.Random(3)
    shared = " ".join(chance.choices(WORDS, k=scenario.shared))
    with path.open("w", encoding="utf-8") as file:
        for number in range(max(2, scenario.rows * scale // 100)):
            own = " ".join(chance.choices(WORDS, k=scenario.own))
            file.write(json.dumps({"id": number, "prompt": f"{shared} {own}".strip()}) + "\n")


def run(
    args: argparse.Namespace, name: str, scenario: Scenario, folder: Path, settings: dict[str, Any]
) -> dict[str, Any]:
    """One run and its diagnosis. `work_s` is from engine ready to the last receipt."""
    shutil.rmtree(folder, ignore_errors=True)
    usual = {
        "engine.options.load_format": "dummy" if args.dummy else "auto",
        "sampling.ignore_eos": True,
        "sampling.max_tokens": scenario.output,
        "prompt.chat": False,
        "run.pilot_rows": 0,
        **dict(one.split("=", 1) for one in args.set),
    }
    sets = [
        word for key, value in {**usual, **settings}.items() for word in ("--set", f"{key}={value}")
    ]
    rows = args.work / f"{name}.jsonl"
    command = [sys.executable, "-m", "batchwright"]
    began = time.monotonic()
    with (args.work / f"{folder.name}.log").open("wb") as log:
        done = subprocess.run(
            [*command, "run", str(rows), "--model", str(args.model), "--dir", str(folder), *sets],
            env=with_paths(scenario.environment), stdout=log, stderr=log,
            timeout=args.timeout_s, check=False,
        )  # fmt: skip
    wall_s = time.monotonic() - began
    found = subprocess.run(
        [*command, "diagnose", str(folder), "--json"], capture_output=True, check=False
    )
    findings = json.loads(found.stdout).get("findings", []) if found.stdout else []
    error = (args.work / f"{folder.name}.log").read_text().splitlines()[-3:]
    return {
        "exit": done.returncode, "wall_s": round(wall_s, 1), "work_s": work_s(folder),
        "findings": findings, "error": error if done.returncode else [],
    }  # fmt: skip


def work_s(folder: Path) -> float | None:
    """Seconds from engine ready to the last receipt."""
    events = folder / "events.jsonl"
    if not events.is_file():
        return None
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    up = [line["at"] for line in lines if line["event"] == "engine_up"]
    ends = [path.stat().st_mtime for path in (folder / "receipts").glob("*.json")]
    return round(max(ends) - up[0], 2) if up and ends else None


def advice(findings: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The first finding about time that says what to change: dummies answer nonsense."""
    return next((one for one in findings if one["changes"] and one["weight"] == "loss"), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--scenarios", default="small-batch,context,tokenising")
    parser.add_argument("--scale", type=int, default=100, help="percent of the rows")
    parser.add_argument("--dummy", action="store_true", help="do not load the model's weights")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--timeout-s", type=float, default=300.0)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    for name in args.scenarios.split(","):
        scenario = SCENARIOS[name]
        write_rows(args.work / f"{name}.jsonl", scenario, args.scale)
        before = run(args, name, scenario, args.work / name, scenario.spoiled)
        print(json.dumps({"scenario": name, "run": "spoiled", **before}), flush=True)
        first = advice(before["findings"])
        if first is None:
            continue
        changes = {one["setting"]: one["to"] for one in first["changes"]}
        settings = {**scenario.spoiled, **changes}
        after = run(args, name, scenario, args.work / f"{name}-advised", settings)
        saved = None
        if before["work_s"] and after["work_s"]:
            saved = round(1 - after["work_s"] / before["work_s"], 3)
        print(
            json.dumps(
                {"scenario": name, "run": "advised", "settings": settings, "promised": first["gain"],
                 "saved": saved, **after}
            ),
            flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
