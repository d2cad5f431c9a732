"""Ids that are in a database already, 16 bytes each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from batchwright.core.ids import text_digest

_Digests = npt.NDArray[np.void]


class SeenIds:
    """A set of ids that grows by a batch at a time.

    Sorted runs, the smaller ones merged as they come, so that an id is sorted about log2(n) times.
    """

    def __init__(self) -> None:
        self._runs: list[_Digests] = []

    def add(self, ids: Sequence[str]) -> list[int]:
        """Add ids; returns the places of those that were there, or stand in the batch twice."""
        digests = np.frombuffer(b"".join(map(text_digest, ids)), dtype="S16")
        first = np.zeros(len(ids), np.bool_)
        first[np.unique(digests, return_index=True)[1]] = True
        again = ~first
        for run in self._runs:
            places = np.minimum(np.searchsorted(run, digests), len(run) - 1)
            again |= run[places] == digests
        fresh = np.sort(digests[~again])
        if len(fresh):
            self._runs.append(fresh)
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            merged = np.concatenate([self._runs.pop(), self._runs.pop()])
            self._runs.append(np.sort(merged))
        return [int(place) for place in np.flatnonzero(again)]
