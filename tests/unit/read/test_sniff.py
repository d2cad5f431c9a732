from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchwright.core.errors import InputError
from batchwright.core.schemas import JSON_INPUT
from batchwright.read.files import list_files
from batchwright.read.rows import peek
from batchwright.read.splits import detect_format
from tests.unit.read.helpers import read, records, write

ENVELOPE = '{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n'


def detect(path: Path | str, asked: str = "auto") -> str:
    return detect_format(list_files(str(path)), asked)


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.jsonl", '{"a": 1}', "jsonl"),
        ("a.ndjson", "", "jsonl"),
        ("a.jsonl", "not json at all\n", "jsonl"),
        ("a.JSONL", "[1]\n[2]\n", "jsonl"),
        ("a.jsonl", '\ufeff[{"a": 1},\n{"a": 2}]', "json"),
        ("a.json", '[{"a": 1}]', "json"),
        ("a.json", '{"a": 1}\n{"a": 2}\n', "jsonl"),
        ("a.json", '{"a": 1}\n', "json"),
        ("a.json", '{\n"a": 1\n}\n', "json"),
        ("a.csv", "{a,b\n", "csv"),
        ("a.tsv", "a\tb\n", "csv"),
        ("data", '{"a": 1}\n', "jsonl"),
        ("data.txt", '\n [{"a": 1}]', "json"),
        ("a.jsonl", ENVELOPE, "openai-batch"),
        ("a.jsonl", "oops\n" + ENVELOPE, "openai-batch"),
        ("a.jsonl", '{"custom_id": "a", "prompt": "x"}\n', "jsonl"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_by_name_and_content(
    tmp_path: Path, name: str, data: str, expected: str, packed: bool
) -> None:
    path = tmp_path / (name + ".gz" if packed and "." in name else name)
    write(path, gzip.compress(data.encode()) if packed and data else data)
    assert detect(path) == expected


def test_parquet_by_content(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.csv")
    assert detect(tmp_path / "x.csv") == "parquet"
    with pytest.raises(InputError, match="this is a Parquet file"):
        detect(tmp_path / "x.csv", "csv")


def test_mixed_formats_name_two_files(tmp_path: Path) -> None:
    one = write(tmp_path / "a.jsonl", '{"a": 1}\n')
    two = write(tmp_path / "b.csv", "a\n1\n")
    write(tmp_path / "c.csv", "")
    with pytest.raises(InputError) as caught:
        detect(tmp_path)
    assert one in caught.value.message
    assert two in caught.value.message


@pytest.mark.parametrize(
    ("name", "data", "asked", "message"),
    [
        ("a.jsonl", '{\n  "a": 1\n}\n{\n  "a": 2\n}\n', "auto", "pretty-printed JSON"),
        ("a.jsonl", '{"a":\n  1\n}\n', "jsonl", "pretty-printed JSON"),
        ("a.jsonl", '{\n"text": "' + "x" * 3_000_000 + '"}\n', "auto", "pretty-printed JSON"),
        ("a.jsonl", '[{"a": 1}]', "jsonl", "JSON array, expected one object per line"),
        ("a.jsonl", '{"a": 1}'.encode("utf-16"), "auto", "UTF-16"),
        ("a.txt", "Dear Sir,\n", "auto", "cannot tell the format"),
        ("a.parquet", "PK?", "auto", "not a Parquet file"),
        ("a.parquet.gz", gzip.compress(b"PAR1xxxx", mtime=0), "auto", "compressed Parquet"),
    ],
)
def test_refusals(tmp_path: Path, name: str, data: bytes | str, asked: str, message: str) -> None:
    path = write(tmp_path / name, data)
    with pytest.raises(InputError, match=message) as caught:
        detect(path, asked)
    assert path in caught.value.message
    assert caught.value.hint


def test_a_first_line_that_is_cut_is_a_bad_row_not_pretty_printing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"a": \n{"a": 2}\n')
    assert records(read(path)) == [None, {"a": 2}]
    path = write(tmp_path / "b.jsonl", '{\n{"a": 2}\n')
    assert records(read(path)) == [None, {"a": 2}]


def test_peek_gives_the_first_good_records(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "oops\n\n")
    write(tmp_path / "b.jsonl", '{"a": 1}\n{"a": 2}\nno\n{"a": 3}\n')
    files = list_files(str(tmp_path))
    assert peek(files, "jsonl", JSON_INPUT) == [{"a": 1}]
    assert peek(files, "jsonl", JSON_INPUT, rows=9) == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert peek(files[:1], "jsonl", JSON_INPUT) == []
