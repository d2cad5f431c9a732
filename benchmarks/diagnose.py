"""Does the diagnosis name the one thing that is wrong? Runs that are built to have it, and one that is well.

    PYTHONPATH=src python -m benchmarks.diagnose [--only tail] [--at-once 4] [--folder DIR]

Every run is a real one of the command line on the fake engine, of 25 to 60 s of work. What the fake
engine cannot do by itself (a slow disk, a slow card) is done to the run's processes from outside, by
a `sitecustomize` that Python loads in each of them; the product knows nothing of it. A card that is
held down is the one thing that is made up: its readings are, the rest of that run is real.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.media_server import MediaServer
from tests.support.pictures import png

ROOT = Path(__file__).resolve().parents[1]
LONGEST_S = 240

# The engine makes 32 rows a step: 0.1 s each are 320 rows/s, which every part of a run keeps up with.
STEADY = {"engine.options.seconds_per_step": 0.1, "engine.options.rows_per_step": 16}
ALWAYS = {"run.pilot_rows": 0, "run.order": "file", "prompt.column": "prompt"}

# Slows down whoever reads: as from a disk or a bucket that gives no more.
SLOW_DISK = """
import batchwright.read.jsonl as jsonl
import batchwright.prepare as prepare
read = prepare.read_split
def slowly(*args, **more):
    for batch in read(*args, **more):
        time.sleep(0.02 * len(batch.records))
        yield batch
prepare.read_split = slowly
prepare.ROWS_PER_BATCH = 64
prepare.ROWS_PER_PART = 128
"""

# A share or a bucket, on which to open a file takes longer than to read it.
SLOW_OPENING = """
import batchwright.read.compression as compression
import batchwright.prepare as prepare
open_bytes = compression.open_bytes
def slowly(path):
    time.sleep(0.03)
    return open_bytes(path)
compression.open_bytes = slowly
prepare.ROWS_PER_BATCH = 64
prepare.ROWS_PER_PART = 128
"""

SLOW_TOKENIZER = """
import batchwright.prepare as prepare
from batchwright.drafts.drafting import RowPreparer
draft = RowPreparer.prepare
def slowly(self, batch):
    time.sleep(0.02 * len(batch.records))
    return draft(self, batch)
RowPreparer.prepare = slowly
prepare.ROWS_PER_BATCH = 64
prepare.ROWS_PER_PART = 128
"""

# The first engine that starts is three times slower than the other.
SLOW_REPLICA = """
import dataclasses
from batchwright.engines.fake import FakeEngine
start = FakeEngine.start
def slow_one(self, settings):
    info = start(self, settings)
    try:
        os.close(os.open(os.environ["SLOW_MARK"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return info
    slower = 3 * self._options.seconds_per_step
    self._options = dataclasses.replace(self._options, seconds_per_step=slower)
    return info
FakeEngine.start = slow_one
"""

HOT_CARD = """
import dataclasses
from batchwright.core.readings import CardReading
from batchwright.machine.worker_reading import Surroundings
reading = Surroundings.reading
def with_card(self, *args, **more):
    found = reading(self, *args, **more)
    card = CardReading(0, use=0.97, memory_bytes=70 << 30, memory_total_bytes=80 << 30,
        others_bytes=0, sm_mhz=1100, sm_max_mhz=1980, temperature_c=92, throttled=("heat",))
    return dataclasses.replace(found, cards=(card,)) if found.role == "infer" else found
Surroundings.reading = with_card
"""

PREPARERS, WORKERS, ENGINES = "'prepare' in args", "'infer' in args", "'engines.child' in args"


@dataclass(frozen=True)
class Scenario:
    """A run with one thing wrong.

    Attributes:
        name: of the cause.
        wanted: codes of which the first finding must be one; empty for a healthy run.
        settings: of the job.
        rows: how many.
        write: makes the input in a folder and returns what to read.
        patch: what is done to some of the run's processes, and to which.
    """

    name: str
    wanted: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    rows: int = 5_000
    write: Callable[[Path, int], str] | None = None
    patch: tuple[str, str] | None = None


def write_rows(folder: Path, rows: int) -> str:
    lines = (json.dumps({"id": f"r{n}", "prompt": f"{n}: say something"}) for n in range(rows))
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return str(folder / "rows.jsonl")


def write_copies(folder: Path, rows: int) -> str:
    lines = (json.dumps({"id": f"r{n}", "prompt": f"say {n % 500}"}) for n in range(rows))
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return str(folder / "rows.jsonl")


def write_small_files(folder: Path, rows: int) -> str:
    (folder / "many").mkdir()
    for number in range(rows):
        row = json.dumps({"id": f"r{number}", "prompt": f"{number}: say something"})
        (folder / "many" / f"{number:06d}.jsonl").write_text(row)
    return str(folder / "many" / "*.jsonl")


def write_pictures(folder: Path, rows: int) -> str:
    server = MediaServer()  # lives as long as this process
    server.files = {f"{number}.png": png(1) for number in range(rows)}
    url = f"{server.url}/slow/0.5"
    lines = (
        json.dumps({"id": f"r{n}", "prompt": f"{n}: what is this?", "picture": f"{url}/{n}.png"})
        for n in range(rows)
    )
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return str(folder / "rows.jsonl")


SCENARIOS = (
    Scenario("healthy", (), rows=8_000),
    Scenario("slow disk", ("slow_reading",), rows=2_000, patch=(PREPARERS, SLOW_DISK)),
    Scenario(
        "slow tokenising", ("slow_tokenizing",), rows=2_000, patch=(PREPARERS, SLOW_TOKENIZER)
    ),
    Scenario(
        "small batch", ("small_batch",),
        {"engine.options.max_num_seqs": 8, "engine.options.kv_tokens": 20_000,
         "engine.options.rows_per_step": 4, "engine.options.seconds_per_step": 0.05}, rows=2_400,
    ),
    Scenario(
        "KV cache full", ("kv_full", "kv_small"),
        {"engine.options.kv_tokens": 900, "engine.options.longest_answer": 400,
         "engine.options.rows_per_step": 2, "engine.options.seconds_per_step": 0.05}, rows=1_200,
    ),
    Scenario(
        "slow replica", ("slow_replica",), {"run.replicas": 2, "run.chunk_rows": 128},
        rows=6_000, patch=(ENGINES, SLOW_REPLICA),
    ),
    Scenario("tail", ("tail",), {"run.replicas": 2, "run.chunk_rows": 3_000}, rows=9_000),
    Scenario("throttled", ("throttled",), rows=6_000, patch=(WORKERS, HOT_CARD)),
    Scenario(
        "small files", ("small_files",), rows=1_200, write=write_small_files,
        patch=(PREPARERS, SLOW_OPENING),
    ),
    Scenario("duplicates", ("duplicates",), rows=6_000, write=write_copies),
    Scenario("output cut", ("answers_cut",), {"sampling.max_tokens": 14}, rows=6_000),
    Scenario(
        "media", ("slow_media",),
        {"prompt.images": "picture", "media.workers": 8, "media.allow_private_addresses": True},
        rows=600, write=write_pictures,
    ),
    Scenario("start-up", ("start_up",), {"engine.options.startup_s": 45}, rows=5_000),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/batchwright-diagnose"))
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    chosen = [one for one in SCENARIOS if not options.only or one.name in options.only]
    begun = time.monotonic()
    with ThreadPoolExecutor(options.at_once) as pool:
        found = list(pool.map(lambda one: examine(one, options.folder), chosen))
    print("| scenario | first finding | worth | others | right | diagnose |")
    print("|---|---|---|---|---|---|")
    right = 0
    for scenario, (findings, seconds) in zip(chosen, found, strict=True):
        first = findings[0]["code"] if findings else "none"
        ok = first in scenario.wanted if scenario.wanted else not findings
        right += ok
        gain = findings[0]["gain"] if findings else None
        worth = "" if gain is None else f"{gain:.0%}"
        others = ", ".join(one["code"] for one in findings[1:])
        mark = "yes" if ok else "NO"
        print(f"| {scenario.name} | {first} | {worth} | {others} | {mark} | {seconds:.1f} s |")
    print(f"{right} of {len(chosen)} right, {time.monotonic() - begun:.0f} s in all")


def examine(scenario: Scenario, base: Path) -> tuple[list[dict[str, Any]], float]:
    """Make the run of a scenario, and ask what is wrong with it."""
    folder = base / scenario.name.replace(" ", "-")
    folder.mkdir(parents=True)
    source = (scenario.write or write_rows)(folder, scenario.rows)
    settings = {**ALWAYS, **STEADY, **scenario.settings}
    command = ["run", source, "--engine", "fake", "--dir", str(folder / "run")]
    for name, value in settings.items():
        command += ["--set", f"{name}={json.dumps(value) if not isinstance(value, str) else value}"]
    call(command, environment(scenario, folder), folder / "run.log")
    begun = time.monotonic()
    said = call(["diagnose", str(folder / "run"), "--json"], os.environ, folder / "diagnose.log")
    return json.loads(said)["findings"], time.monotonic() - begun


def environment(scenario: Scenario, folder: Path) -> dict[str, str]:
    """With the patch where Python finds it in every process of the run."""
    paths = [str(ROOT / "src")]
    if scenario.patch is not None:
        condition, text = scenario.patch
        body = "\n".join(f"    {line}" for line in text.strip().splitlines())
        head = "import os, sys, time\nargs = ' '.join(sys.orig_argv)\n"
        (folder / "patch").mkdir()
        (folder / "patch" / "sitecustomize.py").write_text(f"{head}if {condition}:\n{body}\n")
        paths.insert(0, str(folder / "patch"))
    return {
        **os.environ, "PYTHONPATH": os.pathsep.join(paths), "SLOW_MARK": str(folder / "slow"),
    }  # fmt: skip


def call(command: list[str], env: Any, log: Path) -> str:
    """Run the command line; what it says on stderr goes to a file."""
    with log.open("wb") as file:
        ended = subprocess.run(
            [sys.executable, "-m", "batchwright", *command],
            env=env, stdout=subprocess.PIPE, stderr=file, timeout=LONGEST_S, check=False,
        )  # fmt: skip
    if ended.returncode not in (0, 4):
        raise RuntimeError(f"{log}: exit {ended.returncode}\n{log.read_text()[-2000:]}")
    return ended.stdout.decode()


if __name__ == "__main__":
    main()
