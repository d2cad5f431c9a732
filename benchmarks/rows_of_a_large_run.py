"""`batchwright rows` on a run of many rows that was never computed: time and memory.

python benchmarks/rows_of_a_large_run.py FOLDER [--rows 10000000] [--every 20]

Makes a run directory by hand, one failed row in each `--every`-th chunk of 8,192 (the parts of the others
are not there at all: nothing may read them), then calls the command
in a process of its own and reads its peak memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchwright.core.records import Chunk, OrderBatch, OrderedPart, Receipt, Slice
from batchwright.rundir import artifacts, layout
from batchwright.rundir.prepared import read_columns
from batchwright.rundir.storage import Storage

CHUNK = 8192


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--rows", type=int, default=10_000_000)
    options.add_argument("--every", type=int, default=20)
    given = options.parse_args()
    run = given.folder / "run"
    if not run.exists():
        began = time.monotonic()
        make_run(given.folder, given.rows, given.every)
        print(f"made in {time.monotonic() - began:.0f} s")
    for arguments in ([], ["--status", "failed", "-o", str(given.folder / "failed.jsonl")]):
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "batchwright", "rows", str(run), *arguments],
                       check=True, stdout=subprocess.DEVNULL if not arguments else None)  # fmt: skip
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
        print(f"rows {' '.join(arguments)}: {time.monotonic() - began:.1f} s, peak {peak} MiB")


def make_run(folder: Path, rows: int, every: int) -> None:
    """A real run of one chunk, multiplied: the files of the others are the same but for their rows."""
    data = folder / "rows.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    with data.open("w") as file:
        file.writelines(
            json.dumps({"id": f"r{n}", "prompt": f"prompt {n}"}) + "\n" for n in range(CHUNK)
        )
    run = folder / "run"
    subprocess.run(
        [sys.executable, "-m", "batchwright", "run", str(data), "--engine", "fake", "--dir", str(run),
         "--max-tokens", "16", "--set", f"run.chunk_rows={CHUNK}", "--set", "run.pilot_rows=0",
         "--set", "engine.options.refuse_rows=[7]", "--set", "run.max_failed=1"],
        check=True, capture_output=True,
    )  # fmt: skip
    multiply(Storage(run), rows // CHUNK, every)


def multiply(storage: Storage, copies: int, every: int) -> None:
    (name,) = storage.names(layout.RECEIPTS)
    receipt = artifacts.load(Receipt, storage.read(f"{layout.RECEIPTS}/{name}"), name)
    bad = pq.read_table(pa.BufferReader(storage.read(receipt.file)))
    part = ordered_part(storage)
    assert read_columns(storage, part.file, ["line"]).num_rows == CHUNK
    for number in range(copies):
        fails, first = number % every == 0, number * CHUNK
        file = layout.output_part(f"chunk-0-{number:06d}", "copy")
        if fails:  # the others are not to be read
            rows = pa.array(range(first, first + CHUNK))
            pq.write_table(bad.set_column(0, bad.schema.field("row"), rows), storage.root / file)
        counts: dict[str, Any] = {} if fails else {"ok": CHUNK, "failed": 0, "failures": {}}
        one = replace(
            receipt, chunk=number, file=file, first_row=first, last_row=first + CHUNK - 1, **counts
        )
        storage.put(layout.receipt(f"chunk-0-{number:06d}"), artifacts.dump(one))
    parts = tuple(replace(part, first_row=n * CHUNK) for n in range(copies))
    chunks = tuple(Chunk(0, n, (Slice(part.file, 0, CHUNK, n * CHUNK),)) for n in range(copies))
    batch = OrderBatch(0, 0, parts, chunks, (), (), copies * CHUNK, last=True)
    for old in storage.names(layout.ORDER):
        storage.delete(f"{layout.ORDER}/{old}")
    storage.put(layout.order_batch(0, 0), artifacts.dump(batch))


def ordered_part(storage: Storage) -> OrderedPart:
    paths = [f"{layout.ORDER}/{name}" for name in storage.names(layout.ORDER)]
    batches = [artifacts.load(OrderBatch, storage.read(path), path) for path in paths]
    (part,) = [part for batch in batches for part in batch.parts]
    return part


if __name__ == "__main__":
    main()
