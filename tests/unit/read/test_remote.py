"""Input in a bucket reads as the same files on a disk do."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchwright.core.errors import InputError, JobError
from batchwright.core.records import SourceFile
from batchwright.read.files import list_files, refuse_changed
from batchwright.read.remote import _pattern
from batchwright.read.rows import input_type, peek, read_split
from batchwright.read.sniff import detect_format
from batchwright.read.splits import cut_splits
from batchwright.rundir.storage import Storage
from tests.support.object_store import ObjectStore
from tests.support.s3_faults import faults

LINES = b"".join(
    json.dumps({"id": f"r{n}", "prompt": "x" * n}).encode() + b"\n" for n in range(300)
)


def parquet() -> bytes:
    sink = io.BytesIO()
    rows = {"id": [str(n) for n in range(500)], "prompt": [f"row {n}" for n in range(500)]}
    pq.write_table(pa.table(rows), sink, row_group_size=100)
    return sink.getvalue()


FILES = {
    "lines.jsonl": LINES,
    "packed.jsonl.gz": gzip.compress(LINES[:9000]) + gzip.compress(LINES[9000:]),
    "cells.csv": b'id,prompt\n1,hi\n2,"a\nb"\n',
    "array.json": b'[{"id": 1, "prompt": "x"},\n{"id": 2, "prompt": "y"}]',
    "year=2024/table.parquet": parquet(),
}


@pytest.fixture(params=["s3", "azure"])
def place(request: pytest.FixtureRequest) -> Storage:
    return Storage(request.getfixturevalue(request.param).new_place())


def rows_of(path: str) -> list[object]:
    """All that a job would see of an input."""
    files = list_files(path)
    format = detect_format(files, "auto")
    kind = input_type(files, format)
    splits = cut_splits(files, format, split_bytes=4096)
    assert peek(files, format, kind)
    batches = [batch for split in splits for batch in read_split(split, format, kind)]
    return [format, [record for batch in batches for record in batch.records]]


@pytest.mark.parametrize("name", FILES)
def test_every_format_reads_as_from_a_disk(place: Storage, tmp_path: Path, name: str) -> None:
    place.put(name, FILES[name])
    local = tmp_path / name
    local.parent.mkdir(exist_ok=True)
    local.write_bytes(FILES[name])
    assert rows_of(f"{place.location}/{name}") == rows_of(str(local))


def test_through_faults_too(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Storage(s3.new_place())
    names = ["lines.jsonl", "year=2024/table.parquet"]
    for name in names:
        place.put(name, FILES[name])
    plain = [rows_of(f"{place.location}/{name}") for name in names]
    with faults(s3.url, share=0.06) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        assert [rows_of(f"{place.location}/{name}") for name in names] == plain
        assert sum(proxy.did.values()) > proxy.did["none"]


def test_a_folder_a_glob_and_a_list(place: Storage) -> None:
    names = ["a/1.jsonl", "a/_SUCCESS", "a/.hidden", "a/deep/2.jsonl", "b/3.jsonl", "b/4.csv"]
    for name in names:
        place.put(name, b"{}\n")
    base = place.location

    def found(*paths: str) -> list[str]:
        files = list_files([f"{base}/{path}" for path in paths])
        return [file.path.removeprefix(f"{base}/") for file in files]

    assert found("a") == found("a/") == ["a/1.jsonl", "a/deep/2.jsonl"]
    assert found("*/*.jsonl") == ["a/1.jsonl", "b/3.jsonl"]
    assert found("**/*.jsonl") == ["a/1.jsonl", "a/deep/2.jsonl", "b/3.jsonl"]
    assert found("b/3.jsonl", "b", "b/[!4]*") == ["b/3.jsonl", "b/4.csv"]
    assert found("a/_SUCCESS") == ["a/_SUCCESS"]
    assert list_files(f"{base}/b/3.jsonl")[0].size == 3


def test_a_new_version_of_an_object_has_another_identity(place: Storage) -> None:
    place.put("x.jsonl", b'{"a": 1}\n')
    before = list_files(f"{place.location}/x.jsonl")
    assert list_files(f"{place.location}/x.jsonl") == before
    place.put("x.jsonl", b'{"a": 2}\n')
    assert list_files(f"{place.location}/x.jsonl") != before


@pytest.mark.parametrize("name", ["nothing", "*.jsonl"])
def test_nothing_there(place: Storage, name: str) -> None:
    with pytest.raises(InputError, match="no "):
        list_files(f"{place.location}/{name}")


def test_a_missing_bucket(s3: ObjectStore) -> None:
    with pytest.raises(JobError, match="there is no bucket s3://nobody-made-this"):
        list_files("s3://nobody-made-this/x")


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("a/*.jsonl", "a/x.jsonl", True),
        ("a/*.jsonl", "a/b/x.jsonl", False),
        ("a/**", "a/b/x.jsonl", True),
        ("**/x", "x", True),
        ("a?c/[0-9][!a]", "abc/1b", True),
        ("a?c/[0-9][!a]", "abc/1a", False),
        ("a+b.c", "a+b.c", True),
        ("a+b.c", "aab.c", False),
        ("[", "[", True),
    ],
)
def test_patterns(pattern: str, name: str, matches: bool) -> None:
    assert bool(_pattern(pattern).fullmatch(name)) is matches


def test_small_objects_that_share_a_split_read_as_from_a_disk(
    place: Storage, tmp_path: Path
) -> None:
    """They are fetched side by side, and come in order; a damaged one names itself."""
    for n in range(40):
        body = LINES[n * 100 : n * 100 + 2500 - n * 50]
        place.put(f"many/{n:02}.jsonl", body)
        (tmp_path / f"{n:02}.jsonl").write_bytes(body)
    files = list_files(f"{place.location}/many")
    kind = input_type(files, detect_format(files, "auto"))

    def rows(of: list[SourceFile]) -> list[tuple[object, str, int]]:
        (split,) = cut_splits(of, "jsonl")
        batches = list(read_split(split, "jsonl", kind, batch_rows=16))
        return [
            (record, path.rpartition("/")[2], line)
            for batch in batches
            for record, path, line in zip(batch.records, batch.paths, batch.lines, strict=True)
        ]

    found = rows(files)
    assert found == rows(list_files(str(tmp_path)))
    assert len(found) > 400

    place.put("many/20.jsonl", gzip.compress(LINES)[:-4])
    with pytest.raises(InputError, match=r"many/20\.jsonl: truncated gzip after 300 rows"):
        rows(list_files(f"{place.location}/many"))


def test_objects_that_were_replaced_since_the_run_began_are_refused(place: Storage) -> None:
    for name, data in FILES.items():
        place.put(f"in/{name}", data)
    listed = list_files(f"{place.location}/in")
    named = [list_files(file.path)[0] for file in listed]
    refuse_changed(listed)  # a store may write the mark of a version otherwise in a listing
    refuse_changed(named)
    place.put("in/lines.jsonl", LINES[::-1])
    with pytest.raises(InputError, match=r"lines\.jsonl has changed .*its size is the same"):
        refuse_changed(listed)
    place.delete("in/lines.jsonl")
    with pytest.raises(InputError, match=r"lines\.jsonl: there is no such object"):
        refuse_changed(listed)
