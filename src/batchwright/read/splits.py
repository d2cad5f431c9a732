"""Files cut into splits: the pieces of input that tasks read side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batchwright.core.errors import InputError
from batchwright.core.records import SourceFile, Split
from batchwright.read.compression import compression_of
from batchwright.read.neighbours import share_splits, weight
from batchwright.read.parquet import row_group_ranges
from batchwright.read.sniff import detect_format

__all__ = ["cut_splits", "detect_format"]


def cut_splits(
    files: Sequence[SourceFile],
    format: str,
    *,
    split_bytes: int = 16 << 20,
    shared_bytes: int = 4 << 20,
) -> list[Split]:
    """Splits in input order: pieces of large files, and small ones together.

    Args:
        files: in input order; those without content have no split.
        format: of all of them.
        split_bytes: of a piece of a large file.
        shared_bytes: of small files that share a split. Less than of a large file's piece: how much
            a file holds is a guess, and several processes shall have something to do.
    """
    files = [file for file in files if file.size or format == "parquet"]
    weights = [weight(file, format) for file in files]
    splits: list[Split] = []
    for places in share_splits(weights, shared_bytes):
        first, *others = (files[place] for place in places)
        if others:
            also = tuple(file.path for file in others)
            splits.append(Split(len(splits), first.path, format, 0, -1, also))
            continue
        for start, stop in _ranges(first, format, split_bytes):
            splits.append(Split(len(splits), first.path, format, start, stop))
    return splits


def _ranges(file: SourceFile, format: str, split_bytes: int) -> Iterator[tuple[int, int]]:
    if format == "parquet":
        yield from row_group_ranges(file.path, split_bytes)
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
