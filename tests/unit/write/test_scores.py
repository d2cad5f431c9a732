"""Labels and scores from outcomes to results, in Parquet and in JSON."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchwright.core.errors import VerifyError
from batchwright.core.outcomes import More, Outcome
from batchwright.core.records import Receipt
from batchwright.core.schemas import JSON_INPUT, LABELS_KEY, contract, part_schema
from batchwright.core.tasks import TaskSettings
from batchwright.write.parts import build_part, encode_part, summarise
from tests.unit.write.stored import Folder, export, failure, prepared, rejections

CLASSIFY = TaskSettings("classify", labels=("a", "b"))
SCORE = TaskSettings("score")


def store(folder: Folder, outcomes: list[Outcome], task: TaskSettings, source: pa.Table) -> Receipt:
    rows = np.array([one.row for one in outcomes])
    table = build_part(source.take(rows.tolist()), rows, outcomes, task=task)
    assert table.schema.equals(part_schema(JSON_INPUT, task), check_metadata=True)
    data = encode_part(table)
    (folder.root / "part.parquet").write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    return Receipt(0, 0, "part.parquet", sha256, worker="w", seconds=1, **summarise(table))


def test_labels_and_scores_stand_in_the_place_of_the_text(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run")
    source = prepared(['{"label": "mine", "text": "x"}'] * 3)
    good = Outcome(0, [], more=More(label="b", score=0.7, scores=(0.3, 0.7)))
    part = store(folder, [good, failure(2)], CLASSIFY, source)
    given: dict[str, Any] = {
        "rejected": [rejections([1], pa.array([None], JSON_INPUT))],
        "column_kinds": {"label": {"string"}, "text": {"string"}},
        "total_rows": 3,
        "task": CLASSIFY,
    }
    (path,) = export(folder, tmp_path / "p", [part], **given)
    table = pq.read_table(path)
    names = [field.name for field in contract(CLASSIFY)]
    assert table.column_names == [*names, "input_label", "text"]
    assert names[3:6] == ["label", "score", "scores"]
    assert not {"finish_reason", "completion_tokens", "text"} & set(names)
    assert table.column("label").to_pylist() == ["b", None, None]
    assert table.column("scores").to_pylist() == [[0.3, 0.7], None, None]
    assert json.loads(table.schema.metadata[LABELS_KEY.encode()]) == ["a", "b"]
    assert table.column("warnings").null_count == 3, "a score is no empty answer"
    (lines,) = export(folder, tmp_path / "j", [part], **given, format="jsonl")
    assert b'"label":"b","score":0.7,"scores":[0.3,0.7]' in lines.read_bytes()


def test_a_score_has_no_label_and_a_skipped_document_is_null(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run")
    outcomes = [
        Outcome(0, [], more=More(score=0.5)),
        Outcome(1, [], more=More(scores=(0.1, None))),
    ]
    receipt = store(folder, outcomes, SCORE, prepared(["{}"] * 2))
    assert (receipt.ok, receipt.completion_tokens, receipt.truncated) == (2, 0, 0)
    table = pq.read_table(folder.root / receipt.file)
    assert "label" not in table.column_names
    assert table.column("score").to_pylist() == [0.5, None]
    assert table.column("scores").to_pylist() == [None, [0.1, None]]


def test_a_good_row_without_a_score_is_a_fault_of_ours() -> None:
    with pytest.raises(VerifyError, match="row 0 needs a score"):
        build_part(prepared(["{}"]), np.array([0]), [Outcome(0, [])], task=SCORE)
