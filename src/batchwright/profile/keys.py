"""Sort keys of rows: bytes whose order puts rows that should run together next to each other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batchwright.profile.blocks import Signatures

# Of each block's signature; one in 65,536 pairs of blocks looks equal, and costs a little reuse.
KEY_BYTES = 2

# Prompt lengths in one bucket differ by less than this factor.
BUCKET_FACTOR = 1.1

# Output caps in one bucket differ by less than this factor.
CAP_FACTOR = 2**0.5

# 2^64 by the golden ratio: its multiples are spread evenly (Knuth, vol. 3, 6.4).
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def prefix_keys(signatures: Signatures) -> pa.LargeBinaryArray:
    """Two bytes of the signature of each block: their order is that of the tree of prefixes."""
    heads = (signatures.values >> np.uint64(64 - 8 * KEY_BYTES)).astype(">u2")
    offsets = pa.py_buffer((signatures.offsets * KEY_BYTES).astype(np.int64))
    rows = len(signatures.offsets) - 1
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), rows, [None, offsets, pa.py_buffer(heads.tobytes())]
    )


def length_keys(lengths: npt.NDArray[np.integer]) -> pa.LargeBinaryArray:
    """Buckets of prompt lengths, the longest first: a long prompt at the end would be a tail."""
    buckets = np.log(np.maximum(lengths, 1)) / np.log(BUCKET_FACTOR)
    heads = (0xFFFF - np.floor(buckets)).astype(">u2")
    offsets = np.arange(len(lengths) + 1, dtype=np.int64) * KEY_BYTES
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        len(lengths),
        [None, pa.py_buffer(offsets), pa.py_buffer(heads.tobytes())],
    )


def longest_keys(caps: npt.NDArray[np.integer], first_row: int) -> pa.LargeBinaryArray:
    """Buckets of output caps, the largest first, and no order within a bucket.

    A file that is sorted by length would give one engine the longest rows of all otherwise.

    Args:
        caps: `max_tokens` of each row, shape (rows,).
        first_row: number of the first of them: the same rows always get the same keys.
    """
    buckets = np.floor(np.log(np.maximum(caps, 1)) / np.log(CAP_FACTOR))
    numbers = np.arange(first_row, first_row + len(caps), dtype=np.uint64)
    words = np.empty((len(caps), 2), dtype=">u2")
    words[:, 0] = 0xFFFF - buckets
    words[:, 1] = (numbers * _GOLDEN) >> np.uint64(48)
    offsets = np.arange(len(caps) + 1, dtype=np.int64) * words.itemsize * 2
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(caps), [None, pa.py_buffer(offsets), pa.py_buffer(words.tobytes())]
    )


def shared_blocks(keys: pa.LargeBinaryArray, before: bytes) -> npt.NDArray[np.int64]:
    """Blocks that each row has in common with the row before it, by its key.

    Args:
        keys: of rows in sorted order.
        before: key of the row before the first; empty if there is none.
    """
    offsets, heads = _heads(keys)
    previous = np.frombuffer(before, dtype=np.uint16)
    heads = np.concatenate([previous, heads])
    starts = np.concatenate([[0], offsets[:-1] + len(previous)])
    lengths = np.concatenate([[len(previous)], np.diff(offsets)])
    both: npt.NDArray[np.int64] = np.minimum(lengths[1:], lengths[:-1])
    if not len(both):
        return both
    first = np.cumsum(both) - both
    within = np.arange(int(both.sum())) - np.repeat(first, both)
    differs = (
        heads[np.repeat(starts[1:], both) + within]
        != (heads[np.repeat(starts[:-1], both) + within])
    )
    shared: npt.NDArray[np.int64] = both.copy()
    filled = np.flatnonzero(both)
    if len(filled):
        place = np.where(differs, within, np.iinfo(np.int64).max)
        shared[filled] = np.minimum(np.minimum.reduceat(place, first[filled]), both[filled])
    return shared


def _heads(keys: pa.LargeBinaryArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint16]]:
    """Offsets from 0 and the two-byte words of all keys."""
    _, offsets_buffer, values = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64)[
        keys.offset : keys.offset + len(keys) + 1
    ]
    raw = b"" if values is None else values
    words = np.frombuffer(raw, dtype=np.uint8)[offsets[0] : offsets[-1]].view(np.uint16)
    return (offsets - offsets[0]) // KEY_BYTES, words
