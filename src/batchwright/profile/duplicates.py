"""Which rows ask exactly what an earlier row asks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Digests = npt.NDArray[np.uint64]

MAX_KEYS = 1 << 25


def prompt_digests(
    ids: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    max_tokens: Sequence[int],
    sampling: Sequence[str],
) -> Digests:
    """128-bit BLAKE2b digests of whole requests, shape (rows, 2).

    Args:
        ids: token ids of all rows, one after the other.
        offsets: shape (rows + 1,): row r has `ids[offsets[r]:offsets[r + 1]]`.
        max_tokens: output cap of each row.
        sampling: canonical sampling of each row.
    """
    view = memoryview(np.ascontiguousarray(ids, dtype=np.int32).view(np.uint8).data)
    bounds = (offsets * 4).tolist()
    heads = {pair: repr(pair).encode() for pair in set(zip(max_tokens, sampling, strict=True))}
    out = bytearray()
    for row, pair in enumerate(zip(max_tokens, sampling, strict=True)):
        # The token ids last: the head is quoted and cannot run over into them.
        state = hashlib.blake2b(heads[pair], digest_size=16)
        state.update(view[bounds[row] : bounds[row + 1]])
        out += state.digest()
    return np.frombuffer(bytes(out), dtype=np.uint64).reshape(-1, 2)


class DuplicateTally:
    """Counts rows whose digest was seen before.

    Digests lie in sorted runs whose sizes double, as in a log-structured merge tree: 16 bytes for
    each distinct request, exact up to `max_keys` of them (half a GiB by default). Beyond that
    only the digests below a falling threshold are kept, and each repeat counts for as many as it
    stands for: then the result is an unbiased estimate and `exact` is False.
    """

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._runs: list[Digests] = []  # each (2, keys): first halves, second halves
        self._max_keys = max_keys
        self._halvings = 0
        self._rows = 0.0
        self._tokens = 0.0

    @property
    def exact(self) -> bool:
        """Whether every row was compared with every earlier one."""
        return self._halvings == 0

    @property
    def rows(self) -> int:
        """Rows that repeat an earlier one."""
        return round(self._rows)

    @property
    def tokens(self) -> int:
        """Their prompt tokens."""
        return round(self._tokens)

    def add(self, digests: Digests, tokens: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Add rows in order: digests (rows, 2), tokens (rows,). Says which repeat, shape (rows,)."""
        repeats = np.zeros(len(digests), dtype=np.bool_)
        followed = np.flatnonzero(self._followed(digests[:, 0]))
        keys = digests[followed]
        order = np.lexsort((keys[:, 1], keys[:, 0]))
        keys, followed = keys[order], followed[order]
        repeats[followed[1:]] = (keys[1:] == keys[:-1]).all(axis=1)
        firsts = np.flatnonzero(~repeats[followed])
        known = self._known(keys[firsts])
        repeats[followed[firsts[known]]] = True
        self._insert(keys[firsts[~known]])
        weight = float(1 << self._halvings)
        self._rows += weight * int(repeats.sum())
        self._tokens += weight * int(tokens[repeats].sum())
        self._thin()
        return repeats

    def _followed(self, heads: Digests) -> npt.NDArray[np.bool_]:
        if not self._halvings:
            return np.ones(len(heads), dtype=np.bool_)
        return heads < np.uint64(1 << (64 - self._halvings))

    def _known(self, keys: Digests) -> npt.NDArray[np.bool_]:
        """Which of the sorted keys lie in a run."""
        known = np.zeros(len(keys), dtype=np.bool_)
        for heads, tails in self._runs:
            at = np.searchsorted(heads, keys[:, 0])
            look = np.flatnonzero(at < len(heads))
            while len(look):  # once, unless first halves coincide
                same_head = heads[at[look]] == keys[look, 0]
                same = same_head & (tails[at[look]] == keys[look, 1])
                known[look[same]] = True
                look = look[same_head & ~same]
                at[look] += 1
                look = look[at[look] < len(heads)]
        return known

    def _insert(self, keys: Digests) -> None:
        """Add sorted keys that are in no run."""
        if not len(keys):
            return
        run = np.ascontiguousarray(keys.T)
        while self._runs and self._runs[-1].shape[1] <= 2 * run.shape[1]:
            run = np.concatenate([self._runs.pop(), run], axis=1)
            run = run[:, np.lexsort((run[1], run[0]))]
        self._runs.append(run)

    def _thin(self) -> None:
        while sum(run.shape[1] for run in self._runs) > self._max_keys:
            self._halvings += 1
            kept = [run[:, self._followed(run[0])] for run in self._runs]
            self._runs = [run for run in kept if run.shape[1]]
