"""Makes parts and receipts in a folder, for the tests of this stage."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from batchwright.core.outcomes import Outcome
from batchwright.core.records import Receipt
from batchwright.core.schemas import JSON_INPUT, prepared_schema
from batchwright.write.export import Committed, FileOptions, export_files
from batchwright.write.folder import LocalFolder
from batchwright.write.parts import build_part, encode_part, summarise

ROWS = {field.name for field in fields(Committed)}


class Folder:
    def __init__(self, root: Path, *, local: bool = True) -> None:
        self.root = root
        self.local = local
        root.mkdir(parents=True, exist_ok=True)

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def local_path(self, path: str) -> Path | None:
        return self.root / path if self.local else None


def prepared(inputs: Sequence[Any], input_type: pa.DataType = JSON_INPUT) -> pa.Table:
    n = len(inputs)
    columns = {
        "id": [f"id-{i}" for i in range(n)],
        "token_ids": [[1, 2, 3]] * n,
        "max_tokens": [5] * n,
        "sampling": ["{}"] * n,
        "extras": [None] * n,
        "truncated": [False] * n,
        "warnings": [None] * n,
        "error_code": [None] * n,
        "error": [None] * n,
        "line": list(range(n)),
        "input": pa.array(inputs, input_type),
    }
    return pa.table(columns, schema=prepared_schema(input_type))


def answer(row: int, text: str = "x") -> Outcome:
    return Outcome(row, [7] * (row % 4), text, finish_reason="length" if row % 5 == 0 else "stop")


def failure(row: int) -> Outcome:
    return Outcome(row, [], error_code="timeout", error="too slow", attempts=2)


def store(
    folder: Folder,
    number: int,
    everything: pa.Table,
    rows: Sequence[int],
    *,
    generation: int = 0,
    failed: Sequence[int] = (),
) -> Receipt:
    """Write the part of a chunk of `rows`, whose prepared entries are those of `everything`."""
    outcomes = [failure(row) if row in failed else answer(row, f"answer {row}") for row in rows]
    table = build_part(everything.take(list(rows)), np.array(rows, np.int64), outcomes[::-1])
    data = encode_part(table)
    file = f"part-{generation}-{number}.parquet"
    (folder.root / file).write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    counts = summarise(table)
    return Receipt(generation, number, file, sha256, worker="w", seconds=1.0, **counts)


def rejections(rows: Sequence[int], inputs: pa.Array) -> pa.Table:
    return pa.table(
        {
            "row": pa.array(rows, pa.int64()),
            "id": pa.array([f"id-{row}" for row in rows], pa.large_string()),
            "error_code": pa.array(["bad_json"] * len(rows), pa.string()),
            "error": pa.array(["broken"] * len(rows), pa.large_string()),
            "input": inputs,
        }
    )


def export(folder: Folder, out: Path, parts: Sequence[Receipt], **settings: Any) -> list[Path]:
    rows = {name: settings.pop(name) for name in ROWS if name in settings}
    usual = {"rejected": [], "input_type": JSON_INPUT, "column_kinds": {"q": {"string"}}}
    rejected = rows.get("rejected")
    if isinstance(rejected, Iterator):
        rows["rejected"] = list(rejected)
    committed = Committed(parts=parts, storage=folder, **{**usual, **rows})
    options = {"target_file_bytes": 10**9, **settings}
    if options.get("format", "parquet") != "parquet":
        options = {"compression": "none", **options}
    return export_files(committed, LocalFolder(out), FileOptions(**options))
