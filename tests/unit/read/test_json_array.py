from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchwright.core.errors import InputError
from batchwright.read import json_array
from tests.unit.read.helpers import codes, kept, lines, read, records, until_error, write

ROWS = [{"id": number, "text": 'é\n\\"' * number, "deep": [{"a": None}]} for number in range(9)]


@pytest.mark.parametrize("block", [1, 2, 7, 64, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
def test_elements_at_any_block_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None, block: int
) -> None:
    data = "\ufeff \n" + json.dumps(ROWS, indent=indent, ensure_ascii=False) + "\n"
    path = write(tmp_path / "a.json", data)
    monkeypatch.setattr(json_array, "BLOCK", block)
    read_chunks = json_array.read_chunks
    monkeypatch.setattr(json_array, "read_chunks", lambda path: read_chunks(path, block))
    batches = read(path, batch_rows=4)
    assert records(batches) == ROWS
    assert [json.loads(text) for text in kept(batches)] == ROWS
    assert not any("\n" in text for text in kept(batches))
    assert [len(batch.records) for batch in batches] == [4, 4, 1]
    assert lines(batches)[0] == (2 if indent is None else 3)


def test_digits_survive(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", '[{"a": 1.10, "b": 123456789012345678901234567890}]')
    assert records(read(path)) == [{"a": 1.1, "b": 123456789012345678901234567890}]
    assert kept(read(path)) == ['{"a": 1.10, "b": 123456789012345678901234567890}']


def test_bad_elements_are_bad_rows(tmp_path: Path) -> None:
    data = b'[{"a": 1},\n5,\n"x",\n{"a": "\\ud800"},\n{"a": "\xff"},\n{"a": NaN}]'
    batches = read(write(tmp_path / "a.json", data))
    assert codes(batches) == [
        (2, "not_an_object"),
        (3, "not_an_object"),
        (4, "bad_unicode"),
        (5, "bad_unicode"),
    ]
    assert len(records(batches)) == 6


@pytest.mark.parametrize(
    ("data", "rows", "message"),
    [
        ('[{"a": 1},\n{"a": 2', 1, "damaged JSON at line 2 (the file ends inside the array)"),
        ('[{"a": 1},\n{"a": "2', 1, "damaged JSON at line 2"),
        ('[{"a": 1},\n\n{"a" 2}]', 1, "damaged JSON at line 3 (Expecting ':' delimiter)"),
        ('[{"a": 1}', 1, "damaged JSON at line 1 (the file ends inside the array)"),
        ('[{"a": 1} {"a": 2}]', 1, "expected , or ]"),
        ('[{"a": 1},]', 1, "damaged JSON at line 1"),
        ('[{"a": 1}\n]\n[{"a": 1}]', 1, "damaged JSON at line 3 (extra data after the array)"),
        ("[" * 200_000, 0, "recursion"),
        ("[", 0, "the file ends inside the array"),
    ],
)
def test_damage_is_named_after_the_rows_before_it(
    tmp_path: Path, data: str, rows: int, message: str
) -> None:
    path = write(tmp_path / "a.json", data)
    found, error = until_error(path)
    assert found == [{"a": 1}] * rows
    assert message in error.message
    assert error.message.startswith(path)
    assert error.message.endswith(f"after {rows} rows")


@pytest.mark.parametrize("data", ['{"data": [{"a": 1}]}', "5", '{\n"a": 1\n}'])
def test_other_json_is_refused(tmp_path: Path, data: str) -> None:
    with pytest.raises(InputError, match="expected an array of objects"):
        read(write(tmp_path / "a.json", data))


@pytest.mark.parametrize("data", ["", " \n", "[]", "[ \n ]\n"])
def test_no_rows(tmp_path: Path, data: str) -> None:
    assert records(read(write(tmp_path / "a.json", data))) == []


def test_damage_early_in_a_big_file_is_found_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", '[{"a": oops},' + '{"a": 1},' * 400_000)
    _, error = until_error(path)
    assert "damaged JSON at line 1 (Expecting value)" in error.message
