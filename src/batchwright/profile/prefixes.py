"""What rows share at their beginnings, and what a prefix cache would make of it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from batchwright.core.profile import CachePoint, PrefixLevel, PrefixProfile, SharedPrefix
from batchwright.profile.blocks import Signatures
from batchwright.profile.recency import Recency
from batchwright.profile.table import BlockTable
from batchwright.profile.top import largest_prefixes

LEVELS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)

# 52 bytes each: about 50 MiB.
MAX_BLOCKS = 1 << 20

TOP_PREFIXES = 5

# Stack distances are counted one by one below this, and by 64 bins an octave above.
_EXACT_BINS = 4096
_PER_OCTAVE = 64
_BINS = _EXACT_BINS + 40 * _PER_OCTAVE

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class PrefixTally:
    """Follows the prefix blocks of all rows, in file order.

    It stands for an LRU cache of whole blocks that works as vLLM's does (vLLM documentation,
    "Automatic prefix caching", design page): a row hits the longest run of cached blocks from its
    start, at least one token is computed in any case, and the blocks of a row grow old from the
    end of the prompt, so that a cached block's predecessors are cached too. Rows pass through it
    one at a time; what running rows and answers occupy has to be taken off its size.

    Hits for *every* size follow from one pass by stack distances (Mattson et al., "Evaluation
    techniques for storage hierarchies", IBM Systems Journal 9(2), 1970).

    Args:
        block_size: tokens of an engine block: 16 on GPUs, 128 on vLLM's CPU backend.
        max_blocks: distinct blocks that are followed; beyond that they are sampled. A block takes
            at most 52 bytes.
    """

    def __init__(self, block_size: int, max_blocks: int = MAX_BLOCKS) -> None:
        self.block_size = block_size
        self._table = BlockTable(max_blocks)
        self._recency = Recency()
        self._rows = 0
        self._tokens = 0
        self._blocks = 0
        self._followed = 0.0
        self._repeated = 0.0
        self._file = np.zeros(_BINS)
        self._best = np.zeros(1)
        self._shared = np.zeros(1)

    def add(self, signatures: Signatures, lengths: npt.NDArray[np.integer]) -> None:
        """Add rows in file order. `lengths` are their prompt tokens, shape (rows,)."""
        blocks = np.diff(signatures.offsets)
        row = np.repeat(np.arange(self._rows, self._rows + len(blocks)), blocks)
        depth = np.arange(len(row)) - np.repeat(signatures.offsets[:-1], blocks) + 1
        self._tokens += int(lengths.sum())
        entries, previous = self._look_up(signatures.values, row, depth)
        followed = entries >= 0
        entries, row, depth = entries[followed], row[followed], depth[followed]
        previous = previous[followed]
        weights = self._table.weight[entries]
        self._blocks += len(signatures.values)
        self._followed += float(weights.sum())
        used = self._distances(row, previous, weights)
        self._note_parents(entries, row, previous)
        usable = depth * self.block_size < lengths[row - self._rows]
        self._count(depth, used, weights, previous >= 0, usable)
        self._rows += len(blocks)
        if self._table.full:
            self._table.thin()
            size = len(self._table)
            self._recency.reset(self._table.last[:size], self._table.weight[:size])

    def _look_up(self, values: npt.NDArray[np.uint64], row: Ints, depth: Ints) -> tuple[Ints, Ints]:
        """Entry of each block, and the row that had it last (-1: none); and note the use."""
        order = np.argsort(values, kind="stable")
        ordered = values[order]
        first = np.ones(len(values), dtype=np.bool_)
        first[1:] = ordered[1:] != ordered[:-1]
        starts = np.flatnonzero(first)
        entries, new = self._table.find_or_add(ordered[starts])
        uses = np.diff(np.append(starts, len(values)))
        previous = np.full(len(values), -1, dtype=np.int64)
        previous[order[1:]] = np.where(first[1:], -1, row[order[:-1]])
        known = (entries >= 0) & ~new
        previous[order[starts[known]]] = self._table.last[entries[known]]
        self._note_uses(entries, new, uses, depth[order[starts]], row[order[starts + uses - 1]])
        entry_of = np.empty(len(values), dtype=np.int64)
        entry_of[order] = np.repeat(entries, uses)
        return entry_of, previous

    def _note_uses(
        self, entries: Ints, new: npt.NDArray[np.bool_], uses: Ints, depth: Ints, last: Ints
    ) -> None:
        table = self._table
        table.depth[entries[new]] = depth[new]
        table.count[entries[new]] = 0
        followed = entries >= 0
        entries, depth = entries[followed], depth[followed]
        before = table.count[entries]
        table.count[entries] = before + uses[followed]
        table.last[entries] = last[followed]
        shared = (before < 2) & (table.count[entries] >= 2)
        self._shared = _add(self._shared, depth[shared], table.weight[entries[shared]])

    def _note_parents(self, entries: Ints, row: Ints, previous: Ints) -> None:
        child = np.flatnonzero((row[1:] == row[:-1]) & (previous[1:] < 0)) + 1
        self._table.parent[entries[child]] = entries[child - 1]

    def _distances(self, row: Ints, previous: Ints, weights: Floats) -> Floats:
        """Stack distance of each block, in blocks, not counting itself.

        Above it in the stack lie the blocks of later rows, and those before it in its own row
        that have the same last row.
        """
        if not len(row):
            return np.zeros(0)
        first = np.ones(len(row), dtype=np.bool_)
        first[1:] = (row[1:] != row[:-1]) | (previous[1:] != previous[:-1])
        starts = np.flatnonzero(first)
        lengths = np.diff(np.append(starts, len(row)))
        sums = np.cumsum(weights) - weights
        within = sums - np.repeat(sums[starts], lengths)
        later = self._recency.use(row[starts], previous[starts], np.add.reduceat(weights, starts))
        return np.asarray(np.repeat(later, lengths) + within)

    def _count(
        self,
        depth: Ints,
        distance: Floats,
        weights: Floats,
        repeat: npt.NDArray[np.bool_],
        usable: npt.NDArray[np.bool_],
    ) -> None:
        self._repeated += float(weights[repeat].sum())
        hit = repeat & usable
        bins = _bin(distance[hit])
        self._file += np.bincount(bins, weights=weights[hit], minlength=_BINS)
        self._best = _add(self._best, depth[hit], weights[hit])

    @property
    def sampled_share(self) -> float:
        """Share of the single blocks that are followed now; 1 when all are."""
        return self._table.rate

    @property
    def shareable_share(self) -> float:
        """Share of all prompt tokens that lie in blocks of an earlier row's prefix."""
        return self._share(self._repeated)

    def hit_rate(self, cache_tokens: int | None) -> float:
        """Share of prompt tokens found in an LRU cache of that size, rows in file order."""
        if cache_tokens is None:
            return self._share(float(self._file.sum()))
        blocks = cache_tokens // self.block_size
        return self._share(float(self._file[: int(_bin(np.array([float(blocks)]))[0])].sum()))

    def best_hit_rate(self, cache_tokens: int | None) -> float:
        """The same with the rows in the order of the prefix tree: each shared block is computed
        once, if the path to it fits in the cache.
        """  # noqa: D205
        if cache_tokens is None:
            return self._share(float(self._best.sum()))
        return self._share(float(self._best[: cache_tokens // self.block_size + 1].sum()))

    def _share(self, blocks: float) -> float:
        if not (blocks and self._followed):
            return 0.0
        # A ratio estimate: how many uses there were in all is known exactly.
        return blocks / self._followed * self._blocks * self.block_size / self._tokens

    def levels(self) -> tuple[PrefixLevel, ...]:
        """Shared prefixes down to each depth, the last one of any depth."""
        out = []
        for tokens in LEVELS:
            depth = tokens // self.block_size
            if 0 < depth < len(self._shared) and self._shared[depth] > 0:
                down_to = self._shared[: depth + 1]
                out.append(PrefixLevel(tokens, round(down_to[-1]), self._size(down_to)))
        all_ = self._shared
        return (*out, PrefixLevel(None, round(float(all_.sum())), self._size(all_)))

    def _size(self, blocks: Floats) -> int:
        return round(float(blocks.sum())) * self.block_size

    def profile(self, cache_tokens: int | None, top: int = TOP_PREFIXES) -> PrefixProfile:
        """Everything at once; the texts of the largest prefixes are left empty."""
        sizes = [1 << power for power in range(12, 31)]
        largest = largest_prefixes(self._table, top)
        return PrefixProfile(
            block_size=self.block_size,
            shareable_share=self.shareable_share,
            working_set_tokens=self._size(self._shared),
            cache_tokens=cache_tokens,
            hit_rate_file_order=self.hit_rate(cache_tokens),
            hit_rate_best_order=self.best_hit_rate(cache_tokens),
            curve=tuple(
                CachePoint(size, self.hit_rate(size), self.best_hit_rate(size)) for size in sizes
            ),
            levels=self.levels(),
            top=tuple(SharedPrefix(d * self.block_size, rows, row) for d, rows, row in largest),
            sampled_share=self.sampled_share,
        )


def _add(totals: Floats, at: Ints, weights: Floats) -> Floats:
    """`totals` with weights added at some places, grown as far as they need."""
    if not len(at):
        return totals
    grown = np.zeros(max(len(totals), int(at.max()) + 1))
    grown[: len(totals)] = totals
    np.add.at(grown, at, weights)
    return grown


def _bin(distances: Floats) -> Ints:
    """The bin of a stack distance in blocks."""
    octaves = np.log2(np.maximum(distances, _EXACT_BINS)) - math.log2(_EXACT_BINS)
    above = _EXACT_BINS + np.floor(octaves * _PER_OCTAVE).astype(np.int64)
    whole = np.rint(np.minimum(distances, _EXACT_BINS)).astype(np.int64)
    bins: Ints = np.where(whole < _EXACT_BINS, whole, above)
    return np.minimum(bins, _BINS - 1)
