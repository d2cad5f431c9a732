"""The blocks that a profile follows: a hash table in numpy, thinned out when it is full."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from batchwright.profile.blocks import Hashes

Entries = npt.NDArray[np.int64]

_SPACE = float(1 << 64)

# Bytes for each block that is followed: the columns, and 2 to 4 slots.
BYTES_PER_BLOCK = 8 + 8 + 8 + 4 + 4 + 4 + 16


class BlockTable:
    """What is known of each distinct block (a prefix of whole blocks), at most 52 bytes each.

    When there are more than `max_blocks`, blocks are sampled by their signature, as SHARDS does
    with a falling threshold (Waldspurger et al., "Efficient MRC construction with SHARDS", FAST
    2015, section 3): a block counts for `weight` blocks. Unlike there, blocks that many rows have
    are kept, each with the weight it had: a system prompt is few blocks and most of the hits, so
    losing or doubling one of them would be a large error.

    Attributes:
        last: position of the last row that had the block.
        count: rows that had it.
        weight: how many blocks it stands for.
        depth: its place in the prompt, from 1.
        parent: entry of the block before it, -1 for none.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self.rate = 1.0
        self._size = 0
        self._reserve(1 << 12)
        self._slots = np.full(1 << 13, -1, dtype=np.int32)

    def _reserve(self, room: int) -> None:
        kept = self._size
        for name, kind in _COLUMNS.items():
            column = np.zeros(room, dtype=kind)
            if kept:
                column[:kept] = getattr(self, name)[:kept]
            setattr(self, name, column)

    signature: Hashes
    last: npt.NDArray[np.int64]
    weight: npt.NDArray[np.float64]
    count: npt.NDArray[np.int32]
    depth: npt.NDArray[np.int32]
    parent: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return self._size

    @property
    def full(self) -> bool:
        """Whether `thin` should be called."""
        return self._size > self._max_blocks

    def find_or_add(self, signatures: Hashes) -> tuple[Entries, npt.NDArray[np.bool_]]:
        """Entries of distinct signatures, -1 for one that is not followed; and which are new."""
        entries = self._find(signatures)
        new = (entries < 0) & self._sampled(signatures, self.rate)
        added = np.arange(self._size, self._size + int(new.sum()))
        entries[new] = added
        after = self._size + len(added)
        if after > len(self.signature):
            self._reserve(max(2 * len(self.signature), after))
        self.signature[self._size : after] = signatures[new]
        self.weight[self._size : after] = 1 / self.rate
        self.parent[self._size : after] = -1
        self._size = after
        if 2 * after > len(self._slots):
            self._rebuild()
        else:
            self._place(added)
        return entries, new

    def _find(self, signatures: Hashes) -> Entries:
        mask = np.uint64(len(self._slots) - 1)
        slot = (signatures & mask).astype(np.int64)
        entries = np.full(len(signatures), -1, dtype=np.int64)
        open_ = np.arange(len(signatures))
        while len(open_):
            there = self._slots[slot[open_]]
            equal = (there >= 0) & (self.signature[there] == signatures[open_])
            entries[open_[equal]] = there[equal]
            open_ = open_[(there >= 0) & ~equal]
            slot[open_] = (slot[open_] + 1) & int(mask)
        return entries

    def _place(self, entries: Entries) -> None:
        mask = len(self._slots) - 1
        slot = (self.signature[entries] & np.uint64(mask)).astype(np.int64)
        open_ = np.arange(len(entries))
        while len(open_):
            wanted = slot[open_]
            free = self._slots[wanted] < 0
            self._slots[wanted[free]] = entries[open_[free]]  # where two want one, the last wins
            open_ = open_[self._slots[wanted] != entries[open_]]
            slot[open_] = (slot[open_] + 1) & mask

    def _rebuild(self) -> None:
        size = len(self._slots)
        while size < 2 * self._size:
            size *= 2
        self._slots = np.full(size, -1, dtype=np.int32)
        self._place(np.arange(self._size))

    def thin(self) -> None:
        """Halve the sampling rate until a quarter of the room is free again.

        A block stays when its signature is below the new threshold, or when so many rows have it
        that all such blocks fill at most a quarter of the room. Given that it is there, a
        block's signature is uniform below the threshold it came with, 1 / weight: so the new
        weight of one that stays by its signature is 1 / rate, and sums stay unbiased.
        """
        counts = self.count[: self._size]
        often = 2
        while int((counts >= often).sum()) > self._max_blocks // 4:
            often *= 2
        held = counts >= often
        keep = np.ones(self._size, dtype=np.bool_)
        while int(keep.sum()) > 3 * self._max_blocks // 4:
            self.rate /= 2
            keep = held | self._sampled(self.signature[: self._size], self.rate)
        light = keep & ~held
        self.weight[: self._size][light] = 1 / self.rate
        self._keep_only(keep)

    def _keep_only(self, keep: npt.NDArray[np.bool_]) -> None:
        new_entry = np.full(self._size + 1, -1, dtype=np.int32)  # the last one stands for -1
        kept = np.flatnonzero(keep)
        new_entry[kept] = np.arange(len(kept))
        for name in _COLUMNS:
            getattr(self, name)[: len(kept)] = getattr(self, name)[kept]
        self.parent[: len(kept)] = new_entry[self.parent[: len(kept)]]
        self._size = len(kept)
        self._rebuild()

    @staticmethod
    def _sampled(signatures: Hashes, rate: float) -> npt.NDArray[np.bool_]:
        if rate >= 1:
            return np.ones(len(signatures), dtype=np.bool_)
        return signatures < np.uint64(int(rate * _SPACE))


_COLUMNS: dict[str, type[np.generic]] = {
    "signature": np.uint64,
    "last": np.int64,
    "weight": np.float64,
    "count": np.int32,
    "depth": np.int32,
    "parent": np.int32,
}
