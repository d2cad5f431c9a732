"""Cut the rows, in their order, into chunks. Pure: the same rows always give the same chunks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from batchwright.core.records import Chunk, Slice

SMALLEST_CHUNK = 256
LARGEST_CHUNK = 8192
CHUNKS_PER_SIZE = 16


def rows_in_chunk(number: int, fixed: int | None) -> int:
    """How many rows chunk `number` has: small at first, so that the first results come early
    and a small job commits often; large later, so that a large job has few files.
    """  # noqa: D205
    if fixed is not None:
        return fixed
    return int(min(LARGEST_CHUNK, SMALLEST_CHUNK << min(number // CHUNKS_PER_SIZE, 8)))


def valid_slices(part: str, first_row: int, valid: npt.NDArray[np.bool_]) -> list[Slice]:
    """The runs of valid rows of a prepared part."""
    edges = np.flatnonzero(np.diff(valid, prepend=False, append=False))
    return [
        Slice(part, int(start), int(stop), first_row)
        for start, stop in zip(edges[::2], edges[1::2], strict=True)
    ]


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
) -> tuple[list[Chunk], list[Slice]]:
    """Cut waiting rows into full chunks.

    Args:
        waiting: rows that are in no chunk yet, in order.
        first_number: number of the next chunk.
        fixed: rows per chunk, or None for the growing default.
        last: no more rows will come, so the remainder becomes a chunk too.
        generation: of the chunks.

    Returns:
        The chunks, and the rows that still wait.
    """
    chunks: list[Chunk] = []
    current: list[Slice] = []
    room = rows_in_chunk(first_number, fixed)
    for piece in waiting:
        start = piece.start
        while start < piece.stop:
            stop = min(piece.stop, start + room)
            current.append(Slice(piece.part, start, stop, piece.first_row))
            room -= stop - start
            start = stop
            if room == 0:
                chunks.append(Chunk(generation, first_number + len(chunks), tuple(current)))
                current = []
                room = rows_in_chunk(first_number + len(chunks), fixed)
    if current and last:
        chunks.append(Chunk(generation, first_number + len(chunks), tuple(current)))
        current = []
    return chunks, current
