"""Hold what plan and pilot promise against the run: `python benchmarks/promises.py MODEL`.

Three workloads, each one `batchwright run`: short classification, long summaries, mixed lengths.
Before the run the plan predicts rows/s; the run's pilot then predicts the time of the whole; the run
itself tells the truth. One table at the end.

The model's folder needs config.json and a tokenizer; with `--dummy` it needs no weights. Answers have
forced lengths (`ignore_eos`), which the plan knows as `max_tokens` of each row.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WORDS = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
]


def lognormal(rng: random.Random, mean: float, sigma: float, low: int, high: int) -> int:
    """A length with this mean, cut to [low, high]."""
    mu = math.log(mean) - sigma * sigma / 2
    return max(low, min(high, round(rng.lognormvariate(mu, sigma))))


def row(rng: random.Random, number: int, words: int, answer: int) -> dict[str, Any]:
    text = " ".join(rng.choice(WORDS) for _ in range(words))
    return {"id": number, "prompt": f"{number} {text}", "max_tokens": answer}


def classification(rng: random.Random, scale: float) -> Iterator[dict[str, Any]]:
    for number in range(round(9000 * scale)):
        yield row(rng, number, lognormal(rng, 180, 0.4, 40, 600), rng.randint(2, 8))


def summaries(rng: random.Random, scale: float) -> Iterator[dict[str, Any]]:
    for number in range(round(700 * scale)):
        yield row(
            rng,
            number,
            lognormal(rng, 2200, 0.4, 500, 6000),
            lognormal(rng, 250, 0.4, 60, 800),
        )


def mixed(rng: random.Random, scale: float) -> Iterator[dict[str, Any]]:
    for number in range(round(3500 * scale)):
        yield row(
            rng,
            number,
            lognormal(rng, 300, 0.8, 20, 3000),
            lognormal(rng, 150, 0.9, 5, 1200),
        )


WORKLOADS = {"classification": classification, "summaries": summaries, "mixed": mixed}


def measure(model: Path, name: str, folder: Path, scale: float, options: list[str]) -> list[str]:
    """Run one workload and return its line of the table."""
    data, run_dir = folder / f"{name}.jsonl", folder / f"run-{name}"
    rows = list(WORKLOADS[name](random.Random(0), scale))
    data.write_text("".join(json.dumps(one) + "\n" for one in rows))
    pilot = max(50, len(rows) // 8)
    command = [
        sys.executable, "-m", "batchwright", "run", str(data), "--model", str(model),
        "--dir", str(run_dir), "--set", f"run.pilot_rows={pilot}",
        "--set", "sampling.ignore_eos=true", *options, "--json",
    ]  # fmt: skip
    began = time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    (folder / f"{name}.err").write_text(ended.stderr)
    if ended.returncode:
        return [name, f"exit {ended.returncode}", ended.stderr.strip()[-200:]]
    wall_s = time.monotonic() - began
    report = json.loads((run_dir / "pilot.json").read_text())
    plan_file = run_dir / "plan.json"
    predicted = json.loads(plan_file.read_text())["predicted"] if plan_file.exists() else None
    events = [json.loads(line) for path in run_dir.glob("events*") for line in path.open()]
    up_at = min(event["at"] for event in events if event["event"] == "engine_up")
    done_at = max(path.stat().st_mtime for path in (run_dir / "receipts").iterdir())
    work_s = done_at - up_at
    said = [
        3600 * report["hours"][key] - report["start_up_s"] for key in ("low", "estimate", "high")
    ]
    true_rate = len(rows) / work_s
    before = (
        f"{predicted['rows_per_s']:,.1f} ({predicted['rows_per_s'] / true_rate - 1:+.0%})"
        if predicted
        else "no card"
    )
    return [
        name,
        f"{len(rows):,}",
        f"{pilot:,}",
        before,
        f"{true_rate:,.1f}",
        f"{said[1]:,.1f} ({said[0]:,.1f} to {said[2]:,.1f})",
        f"{work_s:,.1f}",
        f"{said[1] / work_s - 1:+.1%}",
        f"{report['start_up_s']:.0f}",
        f"{wall_s:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("promises"))
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of rows")
    parser.add_argument("--dummy", action="store_true", help="the model has no weights")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--set", action="append", default=[], help="passed on")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    options = [word for one in arguments.set for word in ("--set", one)]
    if arguments.dummy:
        options += ["--set", "engine.options.load_format=dummy"]
    head = [
        "workload", "rows", "pilot", "rows/s by the plan", "rows/s true", "pilot's seconds (80 %)",
        "true s", "error", "start s", "wall s",
    ]  # fmt: skip
    lines = [head, ["---"] * len(head)]
    for name in arguments.workloads.split(","):
        lines.append(measure(arguments.model, name, arguments.folder, arguments.scale, options))
        print(f"| {' | '.join(lines[-1])} |", file=sys.stderr, flush=True)
    for line in lines:
        print(f"| {' | '.join(line)} |")


if __name__ == "__main__":
    main()
