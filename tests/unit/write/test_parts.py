from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchwright.core.errors import VerifyError
from batchwright.core.outcomes import Outcome
from batchwright.core.schemas import JSON_INPUT, part_schema
from batchwright.write.parts import build_part, encode_part, summarise
from tests.unit.write.stored import Folder, answer, export, failure, prepared, store


def test_rows_are_sorted_and_every_column_follows() -> None:
    table = build_part(
        prepared(['{"q": "a"}', '{"q": "b"}', '{"q": "c"}']),
        np.array([9, 2, 5]),
        [
            Outcome(5, [1], "five", "length"),
            failure(9),
            Outcome(2, [1, 2], "two", "stop", "END", 3),
        ],
    )
    assert table.schema.equals(part_schema(JSON_INPUT), check_metadata=True)
    assert table.to_pylist()[0] == {
        "row": 2,
        "id": "id-1",
        "status": "ok",
        "text": "two",
        "finish_reason": "stop",
        "stop_reason": "END",
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "cached_tokens": 3,
        "truncated": False,
        "warnings": None,
        "error_code": None,
        "error": None,
        "attempts": 1,
        "reasoning": None,
        "tool_calls": None,
        "parsed": None,
        "choices": None,
        "logprobs": None,
        "input": '{"q": "b"}',
    }
    assert table.column("text").to_pylist() == ["two", "five", None]
    assert table.column("error_code").to_pylist() == [None, None, "timeout"]
    assert summarise(table) == {
        "rows": 3,
        "ok": 2,
        "failed": 1,
        "truncated": 1,
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "first_row": 2,
        "last_row": 9,
        "failures": {"timeout": 1},
    }


def test_an_empty_answer_is_ok_with_a_warning() -> None:
    source = prepared(["{}", "{}", "{}"])
    noted = pa.array([["not_finite"], None, None], source.schema.field("warnings").type)
    source = source.set_column(source.schema.get_field_index("warnings"), "warnings", noted)
    table = build_part(source, np.array([0, 1, 2]), [answer(0, ""), answer(1, "text"), failure(2)])
    assert table.column("warnings").to_pylist() == [["not_finite", "empty_answer"], None, None]
    assert table.column("status").to_pylist() == ["ok", "ok", "failed"]


@pytest.mark.parametrize(
    ("rows", "answered", "message"),
    [
        ([1, 2], [1, 3], "without an outcome: 2; rows with an outcome nobody asked for: 3"),
        ([1, 2], [1, 1], "with two outcomes: 1"),
        ([1, 1], [1, 1], "in the chunk twice: 1"),
        ([1, 2], [1], "without an outcome: 2"),
    ],
)
def test_outcomes_must_match_the_rows(rows: list[int], answered: list[int], message: str) -> None:
    outcomes = [answer(row) for row in answered]
    with pytest.raises(VerifyError, match=message):
        build_part(prepared(["{}"] * len(rows)), np.array(rows), outcomes)


def test_lengths_must_agree() -> None:
    with pytest.raises(VerifyError, match="1 rows came with 2 prepared rows"):
        build_part(prepared(["{}", "{}"]), np.array([0]), [answer(0)])


def test_encoding_is_repeatable_and_exact() -> None:
    table = build_part(prepared(["{}"]), np.array([4]), [answer(4)])
    assert encode_part(table) == encode_part(table)
    assert pq.read_table(pa.BufferReader(encode_part(table))).equals(table)


def test_a_part_of_format_1_is_exported_with_nulls(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run")
    receipt = store(folder, 0, prepared(['{"q": "a"}', '{"q": "b"}']), [0, 1])
    path = folder.root / receipt.file
    old = pq.read_table(path).drop_columns(
        ["reasoning", "tool_calls", "parsed", "choices", "logprobs"]
    )
    pq.write_table(old, path)
    (result,) = export(folder, tmp_path / "out", [receipt], total_rows=2)
    table = pq.read_table(result)
    assert table.column("text").to_pylist() == ["answer 0", "answer 1"]
    assert table.column("choices").to_pylist() == [None, None]


def test_a_part_may_be_empty() -> None:
    table = build_part(prepared([]), np.empty(0, np.int64), [])
    assert table.num_rows == 0
    assert summarise(table)["first_row"] == -1
