"""Vectors from outcomes to results, in Parquet and in JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchwright.core.errors import VerifyError
from batchwright.core.outcomes import Outcome
from batchwright.core.records import Receipt
from batchwright.core.schemas import JSON_INPUT, contract, part_schema
from batchwright.core.tasks import TaskSettings
from batchwright.core.vectors import EmbeddingSettings
from batchwright.write.parts import build_part, encode_part, summarise
from tests.unit.write.stored import Folder, export, failure, prepared, rejections

SINGLE = EmbeddingSettings("mean", 3)
HALF = EmbeddingSettings("mean", 3, dtype="float16")


def vectors_of(embedding: EmbeddingSettings) -> TaskSettings:
    return TaskSettings("embed", embedding)


def vector(row: int, embedding: EmbeddingSettings) -> np.ndarray[Any, Any]:
    return np.array([row, 0.1, -1], np.dtype(embedding.dtype))


def store(
    folder: Folder,
    source: pa.Table,
    rows: Sequence[int],
    embedding: EmbeddingSettings,
    *,
    number: int = 0,
    generation: int = 0,
    failed: Sequence[int] = (),
) -> Receipt:
    outcomes = [
        failure(row) if row in failed
        else Outcome(row, [], embedding=vector(row, embedding).tobytes())
        for row in rows
    ]  # fmt: skip
    own = source.take(list(rows))
    table = build_part(own, np.array(rows), outcomes[::-1], task=vectors_of(embedding))
    assert table.schema.equals(part_schema(JSON_INPUT, vectors_of(embedding)), check_metadata=True)
    data = encode_part(table)
    file = f"part-{generation}-{number}.parquet"
    (folder.root / file).write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    return Receipt(generation, number, file, sha256, worker="w", seconds=1, **summarise(table))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "run")


@pytest.mark.parametrize("embedding", [SINGLE, HALF], ids=["float32", "float16"])
@pytest.mark.parametrize("sorted_on_disk", [False, True])
def test_every_good_row_has_its_vector_and_the_others_null(
    folder: Folder, tmp_path: Path, embedding: EmbeddingSettings, sorted_on_disk: bool
) -> None:
    source = prepared(['{"q": "x", "text": "mine", "embedding": 1}'] * 6)
    parts = [
        store(folder, source, [4, 5], embedding, number=1, failed=[5]),
        store(folder, source, [0, 2], embedding),
    ]
    if sorted_on_disk:  # a second generation goes through DuckDB
        parts.append(store(folder, source, [5], embedding, number=2, generation=1, failed=[5]))
    given: dict[str, Any] = {
        "rejected": [rejections([1, 3], pa.array([None, None], JSON_INPUT))],
        "column_kinds": {"q": {"string"}, "text": {"string"}, "embedding": {"int"}},
        "total_rows": 6,
        "task": vectors_of(embedding),
    }
    (path,) = export(folder, tmp_path / "p", parts, **given)
    table = pq.read_table(path)
    number = pa.float32() if embedding is SINGLE else pa.float16()
    kind = table.schema.field("embedding").type
    assert (kind.list_size, kind.value_type) == (3, number)
    names = [field.name for field in contract(vectors_of(embedding))]
    assert table.column_names == [*names, "q", "text", "input_embedding"]
    assert not {"finish_reason", "completion_tokens"} & set(table.column_names)
    expected = [vector(row, embedding).tolist() if row in (0, 2, 4) else None for row in range(6)]
    assert table.column("embedding").to_pylist() == expected
    assert table.column("warnings").null_count == 6, "an embedding is no empty answer"

    lines = export(folder, tmp_path / "j", parts, **given, format="jsonl")
    rows = [json.loads(line) for line in lines[0].read_bytes().splitlines()]
    shown = [row["embedding"] for row in rows]
    assert [each is None for each in shown] == [each is None for each in expected]
    for made, wanted in zip(shown, expected, strict=True):
        assert wanted is None or np.array(made, np.dtype(embedding.dtype)).tolist() == wanted
    assert rows[0]["text"] == "mine"


def test_numbers_in_json_are_as_short_as_their_type_allows(folder: Folder, tmp_path: Path) -> None:
    part = store(folder, prepared(["{}"]), [0], SINGLE)
    given: dict[str, Any] = {"column_kinds": {}, "total_rows": 1, "task": vectors_of(SINGLE)}
    (path,) = export(folder, tmp_path / "j", [part], format="jsonl", **given)
    assert b'"embedding":[0.0,0.1,-1.0]' in path.read_bytes()


@pytest.mark.parametrize("vector", [None, b"\0" * 8])
def test_a_good_row_without_its_vector_is_a_fault_of_ours(vector: bytes | None) -> None:
    outcome = Outcome(0, [], embedding=vector)
    with pytest.raises(VerifyError, match="row 0 needs a vector of 12 bytes"):
        build_part(prepared(["{}"]), np.array([0]), [outcome], task=vectors_of(SINGLE))


def test_a_part_of_failed_rows_alone_has_the_same_schema(folder: Folder) -> None:
    receipt = store(folder, prepared(["{}"] * 2), [0, 1], SINGLE, failed=[0, 1])
    stored = pq.read_table(folder.root / receipt.file)
    assert stored.schema.field("embedding").type == pa.binary(12)
    assert (receipt.ok, receipt.failed, receipt.truncated, receipt.completion_tokens) == (
        0,
        2,
        0,
        0,
    )
