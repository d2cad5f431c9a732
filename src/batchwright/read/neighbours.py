"""Small files that lie next to each other: which of them share a split, and reading them one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

import pyarrow as pa

from batchwright.core.errors import InputError, StorageError
from batchwright.core.records import RowBatch, SourceFile
from batchwright.read.opening import each_in_order

# What a byte on the disk is about worth when it is unpacked. A guess is enough: it only says how
# many files share a split.
_PACKED_BY_NAME = (".gz", ".zst", ".zstd")
_PACKED_WORTH = 8
_PARQUET_WORTH = 4

# A split of more files would take long in a bucket, where each costs two requests.
MOST_FILES = 1024

# Batches of a file that are read ahead of its turn: a file that turns out large is not held whole.
_READ_AHEAD = 2

# A batch also ends here, so that long rows do not fill the memory.
_BATCH_BYTES = 32 << 20


def weight(file: SourceFile, format: str) -> int:
    """About how many bytes of rows a file holds."""
    if format == "parquet":
        return max(1, file.size * _PARQUET_WORTH)
    packed = file.path.lower().endswith(_PACKED_BY_NAME)
    return max(1, file.size * (_PACKED_WORTH if packed else 1))


def share_splits(
    weights: Sequence[int], most: int, most_files: int = MOST_FILES
) -> Iterator[range]:
    """Files that go into one split, as runs of neighbours that cover all of them in order.

    Args:
        weights: of the files, in input order.
        most: what the files of a run weigh together at most, unless it is one file.
        most_files: in a run.
    """
    start = held = 0
    for place, size in enumerate(weights):
        if place > start and (held + size > most or place - start == most_files):
            yield range(start, place)
            start, held = place, 0
        held += size
    if weights:
        yield range(start, len(weights))


def in_turn(paths: Sequence[str], read: Callable[[str], Iterator[RowBatch]]) -> Iterator[RowBatch]:
    """The batches of whole files, one file after the other; objects of a bucket are read ahead.

    Raises:
        InputError, StorageError: whatever `read` raises, after the batches before it.
    """
    for batches in each_in_order(lambda path: _begun(read(path)), paths):
        yield from batches


def _begun(batches: Iterator[RowBatch]) -> Iterator[RowBatch]:
    """The same batches, with the first ones read: all of them of a small file."""
    found: list[RowBatch] = []
    try:
        for batch in islice(batches, _READ_AHEAD):
            found.append(batch)
    except (InputError, StorageError) as error:
        return chain(found, _raising(error))
    return chain(found, batches)


def _raising(error: InputError | StorageError) -> Iterator[RowBatch]:
    raise error
    yield  # an iterator that ends in an error


def merged(batches: Iterable[RowBatch], batch_rows: int) -> Iterator[RowBatch]:
    """Batches of several files joined to larger ones: a row costs less among many.

    Raises:
        InputError: whatever `batches` raises, after the rows before it.
    """
    waiting: list[RowBatch] = []
    rows = held = 0
    try:
        for batch in batches:
            waiting.append(batch)
            rows += len(batch.records)
            held += batch.kept.nbytes
            if rows >= batch_rows or held >= _BATCH_BYTES:
                yield _joined(waiting)
                waiting, rows, held = [], 0, 0
    except InputError:
        if rows:
            yield _joined(waiting)
        raise
    if waiting:
        yield _joined(waiting)


def _joined(batches: Sequence[RowBatch]) -> RowBatch:
    """Some batches as one."""
    problems: dict[int, tuple[str, str]] = {}
    first = 0
    for batch in batches:
        problems |= {first + place: problem for place, problem in batch.problems.items()}
        first += len(batch.records)
    return RowBatch(
        [record for batch in batches for record in batch.records],
        pa.concat_arrays([batch.kept for batch in batches]),
        [line for batch in batches for line in batch.lines],
        problems,
        batches[-1].num_lines,
        [path for batch in batches for path in batch.paths],
    )
