from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from batchwright.core.errors import InputError, StorageError
from batchwright.core.records import Split
from batchwright.core.schemas import JSON_INPUT
from batchwright.read import rows
from batchwright.read.files import list_files
from batchwright.read.rows import read_split
from batchwright.read.splits import cut_splits
from tests.unit.read.helpers import write


def test_plain_lines_are_cut_and_the_rest_is_whole(tmp_path: Path) -> None:
    one = write(tmp_path / "a.jsonl", '{"a": 1}\n' * 10)
    write(tmp_path / "b.jsonl", "")
    two = write(tmp_path / "c.jsonl", gzip.compress(b'{"a": 1}\n' * 10))
    assert cut_splits(list_files(str(tmp_path)), "jsonl", split_bytes=40, shared_bytes=40) == [
        Split(0, one, "jsonl", 0, 40),
        Split(1, one, "jsonl", 40, 80),
        Split(2, one, "jsonl", 80, 90),
        Split(3, two, "jsonl", 0, -1),
    ]
    csv = write(tmp_path / "x.csv", "a\n1\n")
    assert cut_splits(list_files(csv), "csv", split_bytes=1) == [Split(0, csv, "csv", 0, -1)]


def test_a_file_that_goes_away_is_an_input_error(tmp_path: Path) -> None:
    for format in ("jsonl", "csv", "json", "parquet"):
        split = Split(0, str(tmp_path / "gone"), format, 0, -1)
        with pytest.raises(InputError, match="gone"):
            list(read_split(split, format, JSON_INPUT))


def test_a_disk_that_fails_is_a_storage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(rows, "_batches", fail)
    with pytest.raises(StorageError, match="/x: Input/output error"):
        list(read_split(Split(0, "/x", "jsonl", 0, 9), "jsonl", JSON_INPUT))
