"""Export of more data than memory: parts from the project's own writers, peak memory and MB/s.

    python benchmarks/export.py --gb 20 --order file
    python benchmarks/export.py --gb 10 --order grouped --format jsonl

Parts hold text that hardly shrinks: about 6 KB of input and 2 KB of answer a row, 4,096 rows a part
(`--chunk-rows`). `--order file`: parts follow each other. `pilot`: besides, 1,000 rows from
everywhere were run first. `grouped`: every part has rows from everywhere, as when rows are
grouped by prefix. The export runs in a process of its own, whose memory (and that of its
children) is read four times a second.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import multiprocessing
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from batchwright.core.outcomes import Outcome
from batchwright.core.records import Receipt
from batchwright.core.schemas import JSON_INPUT, prepared_schema
from batchwright.rundir.storage import Storage
from batchwright.write.export import Committed, FileOptions, export_files
from batchwright.write.folder import LocalFolder
from batchwright.write.parts import build_part, encode_part, summarise

INPUT_CHARS = 6000
ANSWER_CHARS = 2000
BYTES_PER_ROW = 6100  # of a part, measured
PILOT_ROWS = 1000
KINDS = {"key": {"string"}, "stars": {"int"}, "body": {"string"}}


# Random text, used over and over at other places: making it anew would take longer than the export.
@cache
def all_text() -> str:
    return base64.b64encode(np.random.default_rng(0).bytes(48 << 20)).decode()


def some_text(seed: int, chars: int) -> str:
    text = all_text()
    start = seed * 7919 % (len(text) - chars)
    return text[start : start + chars]


def prepared(rows: np.ndarray) -> pa.Table:
    n = len(rows)
    inputs = [
        f'{{"key":"k{row}","stars":{row % 5},"body":"{some_text(row, INPUT_CHARS)}"}}'
        for row in rows.tolist()
    ]
    columns: dict[str, Any] = {
        "id": [f"k{row}" for row in rows.tolist()],
        "token_ids": [[1, 2, 3]] * n,
        "max_tokens": [200] * n,
        "sampling": ["{}"] * n,
        "extras": [None] * n,
        "truncated": [False] * n,
        "warnings": [None] * n,
        "error_code": [None] * n,
        "error": [None] * n,
        "line": rows,
        "input": pa.array(inputs, JSON_INPUT),
    }
    return pa.table(columns, schema=prepared_schema(JSON_INPUT))


def outcomes_of(rows: np.ndarray) -> list[Outcome]:
    return [
        Outcome(row, [7] * 8, some_text(row + 1, ANSWER_CHARS), finish_reason="stop")
        for row in rows.tolist()
    ]


def chunks(total: int, order: str, chunk_rows: int) -> Iterator[np.ndarray]:
    rows = np.arange(total)
    if order == "grouped":
        rows = np.random.default_rng(1).permutation(total)
    elif order == "pilot":
        first = np.sort(np.random.default_rng(1).choice(total, PILOT_ROWS, replace=False))
        yield from np.array_split(first, 4)
        rows = np.setdiff1d(rows, first)
    for start in range(0, len(rows), chunk_rows):
        yield rows[start : start + chunk_rows]


def make_part(storage: Storage, number: int, rows: np.ndarray) -> Receipt:
    table = build_part(prepared(rows), rows, outcomes_of(rows))
    data = encode_part(table)
    file = f"output/part-{number:06d}.parquet"
    storage.put(file, data)
    sha256 = hashlib.sha256(data).hexdigest()
    return Receipt(0, number, file, sha256, worker="w", seconds=1.0, **summarise(table))


def generate(folder: Path, total: int, order: str, chunk_rows: int) -> list[Receipt]:
    storage, started, receipts = Storage(folder), time.monotonic(), []
    for number, rows in enumerate(chunks(total, order, chunk_rows)):
        receipts.append(make_part(storage, number, rows))
        if number % 50 == 0:
            print(f"{number} parts, {time.monotonic() - started:.0f} s", flush=True)
    return receipts


def export(
    folder: Path, receipts: Sequence[dict[str, Any]], total: int, options: dict[str, Any]
) -> None:
    committed = Committed(
        parts=[Receipt(**receipt) for receipt in receipts],
        rejected=[],
        storage=Storage(folder),
        input_type=JSON_INPUT,
        column_kinds=KINDS,
        total_rows=total,
    )
    export_files(committed, LocalFolder(folder / "results"), FileOptions(**options))


class Watcher(threading.Thread):
    """Peak memory of a process with its children, and peak size of what is sorted on disk."""

    def __init__(self, pid: int, staging: Path) -> None:
        super().__init__(daemon=True)
        self.process = psutil.Process(pid)
        self.staging = staging
        self.peak_rss = self.peak_spill = 0

    def run(self) -> None:
        while self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE:
            try:
                family = [self.process, *self.process.children(recursive=True)]
                self.peak_rss = max(self.peak_rss, sum(one.memory_info().rss for one in family))
                spill = size_of(self.staging, ".staging-*/sorting/*")
            except (psutil.NoSuchProcess, FileNotFoundError):
                continue
            self.peak_spill = max(self.peak_spill, spill)
            time.sleep(0.25)


def size_of(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))


def measure(
    folder: Path, receipts: list[Receipt], total: int, options: dict[str, Any]
) -> dict[str, Any]:
    plain = [asdict(receipt) for receipt in receipts]
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=export, args=(folder, plain, total, options))
    started = time.monotonic()
    process.start()
    assert process.pid is not None
    watcher = Watcher(process.pid, folder / "results")
    watcher.start()
    process.join()
    wall_s = time.monotonic() - started
    assert process.exitcode == 0, process.exitcode
    parts_bytes = size_of(folder, "output/*.parquet")
    return {
        "rows": total,
        "parts": len(receipts),
        "parts_gb": round(parts_bytes / 1e9, 2),
        "results_gb": round(size_of(folder, "results/results-*") / 1e9, 2),
        "files": len(list((folder / "results").glob("results-*"))),
        "wall_s": round(wall_s, 1),
        "mb_per_s": round(parts_bytes / 1e6 / wall_s, 1),
        "rows_per_s": round(total / wall_s),
        "peak_rss_mib": watcher.peak_rss >> 20,
        "peak_spill_gb": round(watcher.peak_spill / 1e9, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=1.0, help="size of the parts")
    parser.add_argument("--order", choices=["file", "pilot", "grouped"], default="file")
    parser.add_argument("--format", choices=["parquet", "jsonl", "csv"], default="parquet")
    parser.add_argument("--compression", default="", help="zstd in Parquet, else none")
    parser.add_argument("--any-order", action="store_true", help="do not sort")
    parser.add_argument("--chunk-rows", type=int, default=4096)
    parser.add_argument(
        "--folder", type=Path, help="where parts and results lie; deleted at the end"
    )
    arguments = parser.parse_args()
    total = int(arguments.gb * 1e9 / BYTES_PER_ROW)
    folder = Path(tempfile.mkdtemp(prefix="batchwright-export-", dir=arguments.folder))
    compression = arguments.compression or ("zstd" if arguments.format == "parquet" else "none")
    options = {
        "format": arguments.format,
        "compression": compression,
        "in_order": not arguments.any_order,
    }
    try:
        receipts = generate(folder, total, arguments.order, arguments.chunk_rows)
        print(json.dumps({**vars(arguments), "folder": str(folder)}, default=str))
        print(json.dumps(measure(folder, receipts, total, options)))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
