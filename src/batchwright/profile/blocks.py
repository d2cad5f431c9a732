"""Signatures of prompt prefixes at the boundaries of engine blocks."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from batchwright.core.extras import adapter_of

Hashes = npt.NDArray[np.uint64]

# Blocks hashed at a time: their tokens (8 bytes each) should stay in the processor's cache.
_TOKENS_AT_A_TIME = 1 << 15


class Signatures(NamedTuple):
    """Prefix signatures of some rows.

    Attributes:
        values: one 64-bit number per whole block, rows one after the other; row r has
            `values[offsets[r]:offsets[r + 1]]`, the first for its first block, the second for
            its first two, and so on.
        offsets: shape (rows + 1,).
    """

    values: Hashes
    offsets: npt.NDArray[np.int64]


def adapters_apart(extras: Sequence[str | None]) -> Hashes | None:
    """A number for each row by its adapter, for `block_signatures`; None if no row has one."""
    names = [adapter_of(one) for one in extras]
    if not any(names):
        return None
    known = {name: zlib.crc32(name.encode()) + 1 for name in set(names) if name}
    found = np.array([known.get(name or "", 0) for name in names], dtype=np.uint64)
    # Rows without one have the signatures that they have in a batch without any.
    return np.where(found == 0, found, _mix(found))


def block_signatures(
    ids: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    block_size: int,
    apart: Hashes | None = None,
) -> Signatures:
    """Equal signatures mean equal prefixes of whole blocks, but for one pair in 2^64.

    Each block is hashed by a multilinear form with random odd coefficients modulo 2^64 (Lemire
    and Kaser, "Strongly universal string hashing is fast", The Computer Journal 57(11), 2014) and
    mixed with its place in the prompt; the signature of a prefix is the sum over its blocks,
    mixed (incremental hashing: Bellare and Micciancio, "A new paradigm for collision-free
    hashing", EUROCRYPT 1997). A sum needs no loop over the depth, as a chain would. It is made
    for data, not against somebody who looks for collisions.

    Args:
        ids: token ids of all rows, one after the other.
        offsets: shape (rows + 1,): row r has `ids[offsets[r]:offsets[r + 1]]`.
        block_size: tokens of an engine block.
        apart: a number for each row; rows with different ones share nothing, as the engine's
            cache keeps what different adapters computed apart.
    """
    starts = offsets[:-1]
    blocks_in_row = (offsets[1:] - starts) // block_size
    block_offsets = np.zeros(len(offsets), dtype=np.int64)
    np.cumsum(blocks_in_row, out=block_offsets[1:])
    depth = np.arange(block_offsets[-1]) - np.repeat(block_offsets[:-1], blocks_in_row)
    first_token = np.repeat(starts, blocks_in_row) + depth * block_size
    hashes = _block_hashes(ids, first_token, block_size)
    if apart is not None:
        hashes = hashes ^ np.repeat(apart, blocks_in_row)
    placed = _mix(hashes ^ _mix((depth + 1).astype(np.uint64)))
    sums = np.zeros(len(placed) + 1, dtype=np.uint64)
    np.cumsum(placed, out=sums[1:])
    before = np.repeat(sums[block_offsets[:-1]], blocks_in_row)
    return Signatures(_mix(sums[1:] - before), block_offsets)


def _block_hashes(
    ids: npt.NDArray[np.int32], first_token: npt.NDArray[np.int64], block_size: int
) -> Hashes:
    coefficients = np.random.default_rng(0x5EED).integers(
        0, 1 << 63, size=block_size, dtype=np.uint64
    ) * np.uint64(2) + np.uint64(1)
    hashes = np.empty(len(first_token), dtype=np.uint64)
    if len(ids) < block_size:
        return hashes
    windows = np.lib.stride_tricks.sliding_window_view(ids, block_size)
    step = max(_TOKENS_AT_A_TIME // block_size, 1)
    for start in range(0, len(first_token), step):
        tokens = windows[first_token[start : start + step]].astype(np.uint64)
        hashes[start : start + step] = tokens @ coefficients
    return hashes


def _mix(values: Hashes) -> Hashes:
    """The finaliser of SplitMix64: every bit of the input changes half of the output's.

    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    out = values + np.uint64(0x9E3779B97F4A7C15)
    out ^= out >> np.uint64(30)
    out *= np.uint64(0xBF58476D1CE4E5B9)
    out ^= out >> np.uint64(27)
    out *= np.uint64(0x94D049BB133111EB)
    out ^= out >> np.uint64(31)
    return out
