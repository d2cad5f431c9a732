from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from batchwright.core.errors import InputError
from batchwright.core.records import RowBatch
from batchwright.read.files import list_files
from batchwright.read.rows import input_type, read_split
from batchwright.read.splits import cut_splits, detect_format


def write(path: Path, data: bytes | str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


def read(
    path: Path | str,
    *,
    asked: str = "auto",
    split_bytes: int = 16 << 20,
    shared_bytes: int = 0,
    batch_rows: int = 4096,
) -> list[RowBatch]:
    files = list_files(str(path))
    format = detect_format(files, asked)
    type_ = input_type(files, format)
    return [
        checked(batch, type_)
        for split in cut_splits(files, format, split_bytes=split_bytes, shared_bytes=shared_bytes)
        for batch in read_split(split, format, type_, batch_rows=batch_rows)
    ]


def checked(batch: RowBatch, type_: pa.DataType) -> RowBatch:
    assert batch.kept.type == type_
    assert len(batch.records) == len(batch.kept) == len(batch.lines) == len(batch.paths)
    batch.kept.validate(full=True)
    for place, record in enumerate(batch.records):
        assert record is not None or place in batch.problems
        assert (record is not None) == batch.kept[place].is_valid
    return batch


def records(batches: Iterable[RowBatch]) -> list[dict[str, Any] | None]:
    return [record for batch in batches for record in batch.records]


def kept(batches: Iterable[RowBatch]) -> list[Any]:
    return [text for batch in batches for text in batch.kept.to_pylist()]


def lines(batches: Iterable[RowBatch]) -> list[int]:
    return [line for batch in batches for line in batch.lines]


def codes(batches: Iterable[RowBatch]) -> list[tuple[int, str]]:
    """(line, code) of each bad row."""
    return [(b.lines[place], code) for b in batches for place, (code, _) in b.problems.items()]


def until_error(path: Path | str, **options: Any) -> tuple[list[dict[str, Any] | None], InputError]:
    """The rows that come ahead of the error, and the error."""
    files = list_files(str(path))
    format = detect_format(files, "auto")
    found: list[dict[str, Any] | None] = []
    try:
        for split in cut_splits(files, format):
            for batch in read_split(split, format, input_type(files, format), **options):
                found += batch.records
    except InputError as error:
        return found, error
    raise AssertionError("no error")
