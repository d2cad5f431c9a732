from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchwright.core.errors import InputError
from tests.unit.read.helpers import codes, kept, lines, read, records, until_error, write


def test_quoted_cells_may_hold_anything(tmp_path: Path) -> None:
    data = '\ufeffid,prompt\r\nq1,"one\ntwo, three"\r\n\r\nq2,"she said ""go"" \r\nleft"\r\nq3,a\0b'
    batches = read(write(tmp_path / "a.csv", data))
    assert records(batches) == [
        {"id": "q1", "prompt": "one\ntwo, three"},
        {"id": "q2", "prompt": 'she said "go" \r\nleft'},
        {"id": "q3", "prompt": "a\0b"},
    ]
    assert [json.loads(text) for text in kept(batches)] == records(batches)
    assert lines(batches) == [2, 5, 7]
    assert batches[-1].num_lines == 7


def test_cells_are_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "id,x\n9007199254740993,\n007,null\n,1e5\n")
    assert records(read(path)) == [
        {"id": "9007199254740993", "x": ""},
        {"id": "007", "x": "null"},
        {"id": "", "x": "1e5"},
    ]


def test_a_cell_may_be_long_and_tsv_has_tabs(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "a\tb,c\n1\t" + "x" * 300_000 + "\n")
    assert records(read(path)) == [{"a": "1", "b,c": "x" * 300_000}]


def test_bad_records_are_bad_rows(tmp_path: Path) -> None:
    data = b'a,b\n1,2\n3\n4,5,6\n"x"y,1\n\xff,1\n \n7,8\n'
    batches = read(write(tmp_path / "a.csv", data), batch_rows=3)
    assert codes(batches) == [(3, "bad_csv"), (4, "bad_csv"), (5, "bad_csv"), (6, "bad_unicode")]
    assert batches[0].problems[1][1] == "the record has 1 cells, the header has 2"
    assert [row for row in records(batches) if row] == [{"a": "1", "b": "2"}, {"a": "7", "b": "8"}]


@pytest.mark.parametrize(
    ("header", "message"),
    [("a,b,a", "two columns are named 'a'"), ("a,,b", "column 2 has no name"), ("\xff,b", "UTF-8")],
)
def test_a_bad_header_is_an_error(tmp_path: Path, header: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(write(tmp_path / "a.csv", (header + "\n1,2,3\n").encode("latin-1")))


def test_an_open_quote_is_an_error_at_its_line(tmp_path: Path) -> None:
    found, error = until_error(write(tmp_path / "a.csv", 'a,b\n1,2\n3,"4\n5,6\n'))
    assert found == [{"a": "1", "b": "2"}]
    assert "begins at line 3 after 1 rows" in error.message


def test_no_rows(tmp_path: Path) -> None:
    assert records(read(write(tmp_path / "a.csv", "a,b\n"))) == []
    assert read(write(tmp_path / "b.csv", "")) == []
    assert read(write(tmp_path / "c.csv", "\n\n")) == []


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_cells_that_are_parted_by_another_mark_are_named(tmp_path: Path, mark: str) -> None:
    path = write(tmp_path / "a.csv", f"id{mark}text\n1{mark}hello\n")
    with pytest.raises(InputError, match="another mark than the comma") as caught:
        read(path)
    assert caught.value.message.startswith(f"{path}:1: ")
    assert records(read(write(tmp_path / "b.csv", f"id,a{mark}b\n1,x\n"))) == [
        {"id": "1", f"a{mark}b": "x"}
    ]
