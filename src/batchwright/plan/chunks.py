"""Cut the rows, in their order, into chunks. Pure: the same rows always give the same chunks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from batchwright.core.records import Chunk, OrderedPart, Slice

SMALLEST_CHUNK = 256
LARGEST_CHUNK = 8192
CHUNKS_PER_SIZE = 16

# The last chunks of a run with several engines are no smaller than this.
SMALLEST_TAIL = 64

# A chunk may exceed its size by this share, or stay this share below it, to keep a unit whole.
SLACK = 0.25


class Ahead(NamedTuple):
    """How much to cut for the moment: until there are so many chunks and so many rows."""

    chunks: int
    rows: int


def rows_in_chunk(number: int, fixed: int | None) -> int:
    """How many rows chunk `number` has: small at first, so that the first results come early
    and a small job commits often; large later, so that a large job has few files.
    """  # noqa: D205
    if fixed is not None:
        return fixed
    return int(min(LARGEST_CHUNK, SMALLEST_CHUNK << min(number // CHUNKS_PER_SIZE, 8)))


def rows_at_the_end(size: int, remaining: int, replicas: int) -> int:
    """The size of the next chunk with so many rows left: small, so that engines end together."""
    if replicas == 1:
        return size
    return max(min(size, SMALLEST_TAIL), min(size, remaining // (2 * replicas)))


def valid_slices(part: str, first_row: int, valid: npt.NDArray[np.bool_]) -> list[Slice]:
    """The runs of valid rows of a prepared part."""
    edges = np.flatnonzero(np.diff(valid, prepend=False, append=False))
    return [
        Slice(part, int(start), int(stop), first_row)
        for start, stop in zip(edges[::2], edges[1::2], strict=True)
    ]


def slices_of_rows(parts: Sequence[OrderedPart], rows: npt.NDArray[np.int64]) -> list[Slice]:
    """Where some rows lie, in input order.

    Args:
        parts: in input order, of one generation.
        rows: ascending.
    """
    starts = np.asarray([part.first_row for part in parts], dtype=np.int64)
    borders = np.searchsorted(rows, np.append(starts, np.iinfo(np.int64).max))
    slices: list[Slice] = []
    for part, first, last in zip(parts, borders[:-1], borders[1:], strict=True):
        if first < last:
            valid = np.zeros(part.rows, dtype=bool)
            valid[rows[first:last] - part.first_row] = True
            slices += valid_slices(part.file, part.first_row, valid)
    return slices


def divide(
    slices: Sequence[Slice], chosen: npt.NDArray[np.bool_]
) -> tuple[list[Slice], list[Slice]]:
    """The chosen rows of some slices, and the others.

    Args:
        slices: in order.
        chosen: one flag for each row of the slices, in the same order.
    """
    picked: list[Slice] = []
    others: list[Slice] = []
    first = 0
    for piece in slices:
        flags = chosen[first : first + piece.stop - piece.start]
        first += len(flags)
        for into, mask in ((picked, flags), (others, ~flags)):
            into += [
                Slice(piece.part, run.start + piece.start, run.stop + piece.start, piece.first_row)
                for run in valid_slices(piece.part, piece.first_row, mask)
            ]
    return picked, others


def cut_chunks(
    waiting: Sequence[Slice],
    first_number: int,
    fixed: int | None,
    *,
    last: bool,
    generation: int = 0,
    replicas: int = 1,
    ahead: Ahead | None = None,
) -> tuple[list[Chunk], list[Slice]]:
    """Cut waiting rows into chunks.

    With several engines the last chunks get smaller and smaller. So a chunk is cut only once it is
    known whether it is one of them, and the chunks do not depend on how many rows wait at a time.

    Args:
        waiting: rows that are in no chunk yet, in order.
        first_number: number of the next chunk.
        fixed: rows per chunk, or None for the growing default.
        last: no more rows will come, so the remainder becomes a chunk too.
        generation: of the chunks.
        replicas: engines that share the work.
        ahead: stop when so much is cut; None for everything.

    Returns:
        The chunks, and the rows that still wait.
    """
    chunks: list[Chunk] = []
    rest = deque(waiting)
    left = cut = count_rows(waiting)
    engines = 1 if fixed is not None else replicas
    while left and not (ahead and len(chunks) >= ahead.chunks and cut - left >= ahead.rows):
        size = rows_in_chunk(first_number + len(chunks), fixed)
        if not last and left < size * (1 if engines == 1 else 2 * engines):
            break
        size = min(left, rows_at_the_end(size, left, engines))
        chunks.append(Chunk(generation, first_number + len(chunks), tuple(_take(rest, size))))
        left -= size
    return chunks, list(rest)


def _take(rest: deque[Slice], rows: int) -> list[Slice]:
    """The first rows of some slices, taken off them."""
    taken: list[Slice] = []
    while rows:
        piece = rest.popleft()
        stop = min(piece.stop, piece.start + rows)
        taken.append(Slice(piece.part, piece.start, stop, piece.first_row))
        if stop < piece.stop:
            rest.appendleft(Slice(piece.part, stop, piece.stop, piece.first_row))
        rows -= stop - piece.start
    return taken


def take_planned(
    waiting: Sequence[Slice], first_number: int, ahead: Ahead | None
) -> tuple[list[Chunk], list[Slice]]:
    """Chunks of grouped rows, which wait as a slice for each chunk; see `plan_chunks`."""
    count = rows = 0
    while count < len(waiting) and not (ahead and count >= ahead.chunks and rows >= ahead.rows):
        rows += waiting[count].stop - waiting[count].start
        count += 1
    chunks = [
        Chunk(0, first_number + index, (piece,)) for index, piece in enumerate(waiting[:count])
    ]
    return chunks, list(waiting[count:])


def plan_chunks(
    units: Sequence[int], first_number: int, fixed: int | None, replicas: int
) -> list[int]:
    """Rows of each chunk, so that units of rows that belong together stay whole where they can.

    Args:
        units: rows of each unit, in order.
        first_number: number of the first chunk.
        fixed: rows per chunk, or None for the growing default.
        replicas: engines that share the work.
    """
    sizes: list[int] = []
    left = sum(units)
    engines = 1 if fixed is not None else replicas
    count = 0
    for unit in units:
        rows = unit
        while rows:
            size = rows_in_chunk(first_number + len(sizes), fixed)
            size = rows_at_the_end(size, left + count, engines)
            slack = 0 if fixed is not None else int(size * SLACK)
            if count + rows <= size + slack:
                count += rows
                left -= rows
                rows = 0
            elif count < size - slack:
                left -= size - count
                rows -= size - count
                count = size
            if count >= size - (slack if rows else 0):
                sizes.append(count)
                count = 0
    return [*sizes, count] if count else sizes


def count_rows(slices: Sequence[Slice]) -> int:
    """Rows of some slices."""
    return sum(piece.stop - piece.start for piece in slices)
