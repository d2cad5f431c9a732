"""Files cut into splits: the pieces of input that tasks read side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batchwright.core.errors import InputError
from batchwright.core.records import SourceFile, Split
from batchwright.read.compression import compression_of
from batchwright.read.parquet import row_group_ranges
from batchwright.read.sniff import detect_format

__all__ = ["cut_splits", "detect_format"]


def cut_splits(
    files: Sequence[SourceFile], format: str, *, split_bytes: int = 16 << 20
) -> list[Split]:
    """Splits in input order. Files without content have none."""
    splits: list[Split] = []
    for file in files:
        for start, stop in _ranges(file, format, split_bytes):
            splits.append(Split(len(splits), file.path, format, start, stop))
    return splits


def _ranges(file: SourceFile, format: str, split_bytes: int) -> Iterator[tuple[int, int]]:
    if format == "parquet":
        yield from row_group_ranges(file.path, split_bytes)
    elif not file.size:
        return
    elif format in ("jsonl", "openai-batch") and not _is_packed(file.path):
        for start in range(0, file.size, split_bytes):
            yield start, min(start + split_bytes, file.size)
    else:
        yield 0, -1


def _is_packed(path: str) -> bool:
    try:
        return bool(compression_of(path))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "Make the file readable.") from error
