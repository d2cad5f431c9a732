"""The same rows give the same bytes, however they were cut into parts."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright.core.records import Receipt
from batchwright.core.schemas import JSON_INPUT
from batchwright.write.verify import verify_parts
from tests.unit.write.stored import Folder, export, prepared, rejections, store

ROWS = 2500
SOURCE = prepared(
    [json.dumps({"q": f"q{i}", "n": i, "o": None if i % 3 else [i]}) for i in range(ROWS)]
)
KINDS = {"q": {"string"}, "n": {"int"}, "o": {"null", "list"}}
REJECTED = [7, 1023, 1024, 2499]
FAILED = frozenset(range(5, ROWS, 50)) - set(REJECTED)
STILL_FAILED = sorted(FAILED)[::2]
REJECTED_TABLES = [
    rejections(REJECTED[i : i + 2], pa.array(['{"q": "r"}', None], JSON_INPUT)) for i in (0, 2)
]
GOOD = [row for row in range(ROWS) if row not in REJECTED]


def _parts(folder: Folder, pieces: list[list[int]], retries: list[list[int]]) -> list[Receipt]:
    failed = STILL_FAILED if not retries else sorted(FAILED)
    first = [store(folder, i, SOURCE, rows, failed=failed) for i, rows in enumerate(pieces)]
    again = [
        store(folder, i, SOURCE, rows, generation=1, failed=STILL_FAILED)
        for i, rows in enumerate(retries)
    ]
    return first + again


def _written(root: Path, parts: list[Receipt], format: str) -> list[bytes]:
    shape: dict[str, Any] = {
        "rejected": REJECTED_TABLES,
        "column_kinds": KINDS,
        "target_file_bytes": 20_000 if format == "parquet" else 200_000,
    }
    paths = export(Folder(root), root / "results", parts, total_rows=ROWS, format=format, **shape)
    return [path.read_bytes() for path in paths]


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, list[bytes]]:
    with tempfile.TemporaryDirectory() as name:
        parts = _parts(Folder(Path(name)), [GOOD], [])
        return {format: _written(Path(name), parts, format) for format in ("parquet", "jsonl")}


def _cut(rows: list[int], borders: set[int]) -> list[list[int]]:
    edges = [0, *sorted(border for border in borders if border < len(rows)), len(rows)]
    return [rows[a:b] for a, b in itertools.pairwise(edges) if a < b]


borders = st.sets(st.integers(1, ROWS), max_size=6)


@settings(max_examples=12, deadline=None)
@given(
    borders=borders,
    seed=st.none() | st.integers(0, 99),
    retried=st.booleans(),
    format=st.sampled_from(["parquet", "jsonl"]),
    order=st.randoms(use_true_random=False),
)
def test_bytes_do_not_depend_on_parts(
    uninterrupted: dict[str, list[bytes]],
    borders: set[int],
    seed: int | None,
    retried: bool,
    format: str,
    order: Any,
) -> None:
    rows = GOOD if seed is None else np.random.default_rng(seed).permutation(GOOD).tolist()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        retries = _cut(sorted(FAILED, reverse=True), borders) if retried else []
        parts = _parts(Folder(root), _cut(rows, borders), retries)
        order.shuffle(parts)
        assert _written(root, parts, format) == uninterrupted[format]
        found = verify_parts(
            receipts=parts, total_rows=ROWS, rejected_rows=np.array(REJECTED), storage=Folder(root)
        )
        assert found.passed, found.problems
        assert (found.failed, found.rejected) == (len(STILL_FAILED), len(REJECTED))
