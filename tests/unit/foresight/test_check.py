from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from batchwright.core.errors import InputError, Stopped
from batchwright.foresight.check import Validation, check_rows
from tests.unit.rundir.small_runs import Row, prompts, small_run


def check(
    tmp_path: Path, rows: dict[str, Sequence[Row]] | Sequence[Row], **settings: Any
) -> Validation:
    run = small_run(tmp_path, rows, **settings)
    return check_rows(run.manifest, run.job, threading.Event(), lambda _: None)


MIXED: list[Row] = [
    "", {"id": "a", "prompt": "xx"}, "{bad", {"id": "a", "prompt": "y"}, "", {"id": "b", "prompt": " "},
    {"id": "c", "prompt": ""}, {"id": "d", "prompt": "\u2003"}, {"id": "a", "prompt": "z"},
]  # fmt: skip


@pytest.mark.parametrize("split_bytes", [20, 50, 1 << 20])
def test_findings_have_a_number_and_the_first_place(tmp_path: Path, split_bytes: int) -> None:
    report = check(tmp_path, MIXED, split_bytes=split_bytes)
    path = tmp_path / "data" / "rows.jsonl"
    assert (report.rows, report.valid, report.rejected) == (7, 3, 4)
    assert report.share_rejected == 4 / 7
    assert report.rejections.keys() == {"bad_json", "duplicate_id", "empty_prompt"}
    assert report.rejections["bad_json"][1].startswith(f"{path}:3: ")
    assert report.rejections["duplicate_id"][0] == 2
    assert report.rejections["duplicate_id"][1] == f"{path}:4: the id was first used by row 0"
    assert report.warnings == {"blank_prompt": (2, f"{path}:6")}
    assert (report.prompt_tokens, report.longest_prompt) == (6, 3)


@pytest.mark.parametrize("shared_bytes", [0, 1 << 20])
def test_the_second_file_begins_at_line_one(tmp_path: Path, shared_bytes: int) -> None:
    rows: dict[str, Sequence[Row]] = {"a.jsonl": prompts(30), "b.jsonl": ["{bad"]}
    report = check(tmp_path, rows, split_bytes=100, shared_bytes=shared_bytes)
    assert report.rejections["bad_json"][1].startswith(f"{tmp_path / 'data' / 'b.jsonl'}:1: ")


@pytest.mark.parametrize("settings", [{}, {"input__limit": 4}, {"input__duplicate_ids": "allow"}])
def test_validate_says_what_a_run_would_reject(tmp_path: Path, settings: dict[str, Any]) -> None:
    report = check(tmp_path, MIXED, split_bytes=50, **settings)
    run = small_run(tmp_path, tmp_path / "data", split_bytes=50, **settings)
    run.prepare()
    run.order()
    counts = run.state().counts()
    assert (report.rows, report.rejected) == (counts.rows, counts.rejected)
    codes: dict[str, int] = {}
    for line in run.rejected():
        codes[line["code"]] = codes.get(line["code"], 0) + 1
    assert {code: number for code, (number, _) in report.rejections.items()} == codes


def test_as_json_is_flat(tmp_path: Path) -> None:
    body = check(tmp_path, [{"prompt": "x"}, {"prompt": ""}]).as_json()
    assert body["rows_in"] == 2
    assert body["rejections"]["empty_prompt"]["rows"] == 1
    assert "rows.jsonl:2" in body["rejections"]["empty_prompt"]["first"]


def test_stop_ends_it_early(tmp_path: Path) -> None:
    run = small_run(tmp_path, prompts(3))
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        check_rows(run.manifest, run.job, stop, lambda _: None)


def test_an_input_of_blank_lines_is_no_silent_success(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rows"):
        check(tmp_path, ["", "  ", ""])
