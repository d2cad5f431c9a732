"""Small files that share a split read as they do apart."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchwright.core.errors import InputError
from batchwright.core.records import SourceFile, Split
from batchwright.read.files import list_files
from batchwright.read.neighbours import weight
from batchwright.read.rows import input_type, read_split
from batchwright.read.splits import cut_splits
from tests.unit.read.helpers import codes, kept, lines, read, records, write


def parquet(path: Path, columns: dict[str, list[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def lay(folder: Path, kind: str) -> Path:
    """Five small files of a kind, unlike each other; two have no row."""
    if kind == "parquet":
        parquet(folder / "day=1/a.parquet", {"a": [1, 2], "b": ["x", None]})
        parquet(folder / "day=1/b.parquet", {"a": [3]})
        parquet(folder / "day=2/a.parquet", {"a": [4.5], "c": [{"d": 1}]})
        parquet(folder / "day=2/b.parquet", {"a": pa.array([], pa.int64())})
        parquet(folder / "day=3/a.parquet", {"c": [{"e": "y"}]})
    elif kind == "csv":
        for name, text in enumerate(["a,b\n1,2\n\n3\n", "a\n", "c\n9\n", 'a,b\n"x\ny",1\n', ""]):
            write(folder / f"{name}.csv", text)
    elif kind == "json":
        texts = ['[{"a": 1},\n 5]', "[]", '[{"b": 2}]', '\n\n[{"c": 3}]', "[ ]"]
        for name, text in enumerate(texts):
            write(folder / f"{name}.json", text)
    else:
        write(folder / "a.jsonl", '{"a": 1}\n\n{bad\n{"a": 2}')
        write(folder / "b.jsonl", gzip.compress(b'{"a": 3}\noops\n'))
        write(folder / "c.jsonl", "\n\n")
        write(folder / "d.jsonl", '\ufeff{"b": 4}\r\n{"b": 18446744073709551616}\r\n')
        write(folder / "e.jsonl", "")
    return folder


@pytest.mark.parametrize("batch_rows", [2, 4096])
@pytest.mark.parametrize("kind", ["jsonl", "csv", "json", "parquet"])
def test_rows_are_the_same_as_apart(tmp_path: Path, kind: str, batch_rows: int) -> None:
    folder = lay(tmp_path / "data", kind)
    files = list_files(str(folder))
    assert len(cut_splits(files, kind)) == 1
    assert len(cut_splits(files, kind, shared_bytes=0)) >= 4
    apart = read(folder, asked=kind, batch_rows=batch_rows)
    together = read(folder, asked=kind, shared_bytes=1 << 20, batch_rows=batch_rows)
    assert len(together) <= len(apart)
    assert records(together) == records(apart)
    assert kept(together) == kept(apart)
    assert lines(together) == lines(apart)
    assert codes(together) == codes(apart)
    paths = [path for batch in together for path in batch.paths]
    assert paths == [path for batch in apart for path in batch.paths]
    assert len(set(paths)) >= 3


def test_a_damaged_file_names_itself_after_the_rows_before_it(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"a": 1}\n{"a": 2}\n')
    packed = gzip.compress(b'{"a": 3}\n')
    bad = write(tmp_path / "b.jsonl", packed[:-4])
    write(tmp_path / "c.jsonl", '{"a": 4}\n')
    files = list_files(str(tmp_path))
    (split,) = cut_splits(files, "jsonl")
    found = []
    with pytest.raises(InputError, match=rf"{bad}: truncated gzip after 1 rows"):
        for batch in read_split(split, "jsonl", input_type(files, "jsonl")):
            found += batch.records
    assert found == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_large_files_keep_splits_of_their_own(tmp_path: Path) -> None:
    small, large = '{"a": 1}\n', '{"a": 1}\n' * 10
    paths = [
        write(tmp_path / f"{name}.jsonl", text)
        for name, text in enumerate([small, small, large, small, "", small, small])
    ]
    assert cut_splits(list_files(str(tmp_path)), "jsonl", split_bytes=50, shared_bytes=18) == [
        Split(0, paths[0], "jsonl", 0, -1, (paths[1],)),
        Split(1, paths[2], "jsonl", 0, 50),
        Split(2, paths[2], "jsonl", 50, 90),
        Split(3, paths[3], "jsonl", 0, -1, (paths[5],)),
        Split(4, paths[6], "jsonl", 0, 9),
    ]


def test_packed_files_weigh_what_they_may_hold() -> None:
    plain = weight(SourceFile("a.jsonl", 100, ""), "jsonl")
    assert weight(SourceFile("a.jsonl.gz", 100, ""), "jsonl") > plain
    assert weight(SourceFile("a.parquet", 100, ""), "parquet") > plain
