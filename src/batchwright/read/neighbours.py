"""Small files that lie next to each other: which of them share a split, and reading them one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from batchwright.core.errors import InputError, StorageError
from batchwright.core.records import RowBatch, SourceFile, Split
from batchwright.rundir.locations import is_address

# What a byte on the disk is about worth when it is unpacked. A guess is enough: it only says how
# many files share a split.
_PACKED_BY_NAME = (".gz", ".zst", ".zstd")
_PACKED_WORTH = 8
_PARQUET_WORTH = 4

# A split of more files would take long in a bucket, where each costs two requests.
MOST_FILES = 1024

# Objects of one split that are fetched at the same time.
_FETCHED_AT_ONCE = 16

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


def in_turn(
    files: Iterable[Split], read: Callable[[Split], Iterator[RowBatch]]
) -> Iterator[RowBatch]:
    """The batches of whole files, one file after the other; objects are fetched ahead.

    Raises:
        InputError, StorageError: whatever `read` raises, after the batches before it.
    """
    pieces = list(files)
    if not is_address(pieces[0].path):
        for piece in pieces:
            yield from read(piece)
        return
    pool = ThreadPoolExecutor(_FETCHED_AT_ONCE, "fetch")
    try:
        for found, error in pool.map(lambda piece: _all_of(read(piece)), pieces):
            yield from found
            if error is not None:
                raise error
    finally:
        pool.shutdown(cancel_futures=True)


def _all_of(
    batches: Iterator[RowBatch],
) -> tuple[list[RowBatch], InputError | StorageError | None]:
    found: list[RowBatch] = []
    try:
        found.extend(batches)
    except (InputError, StorageError) as error:
        return found, error
    return found, None


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
