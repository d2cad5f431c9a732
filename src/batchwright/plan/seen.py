"""Which ids were seen before: exact, in 24 bytes a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from batchwright.core.ids import text_digest


class SeenIds:
    """Finds ids that repeat, in the order in which they come.

    Ids are kept as 128-bit digests in sorted runs whose sizes double, as in a log-structured
    merge tree: adding n ids costs O(n log n) in all and never more than 24 bytes a row.
    """

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def add(self, ids: Sequence[str], rows: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
        """Add ids; returns (index into `ids`, row that had the id first) for each repeat."""
        if not ids:
            return []
        digests = b"".join(map(text_digest, ids))
        keys = np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)
        first_rows = self._first_rows(keys, rows)
        repeats = np.flatnonzero(first_rows >= 0)
        if len(repeats) < len(ids):
            fresh = first_rows < 0
            self._insert(_Run(*_sorted(keys[fresh], rows[fresh])))
        return [(int(index), int(first_rows[index])) for index in repeats]

    def _first_rows(
        self, keys: npt.NDArray[np.uint64], rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Row that had each key first, -1 for a key that is new."""
        first_rows = np.full(len(keys), -1, dtype=np.int64)
        for run in self._runs:
            run.look_up(keys, first_rows)
        _, first_at, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        earliest = first_at[inverse.reshape(-1)]
        inside = (earliest != np.arange(len(keys))) & (first_rows < 0)
        first_rows[inside] = rows[earliest[inside]]
        return first_rows

    def _insert(self, run: _Run) -> None:
        while self._runs and len(self._runs[-1].rows) <= 2 * len(run.rows):
            other = self._runs.pop()
            run = _Run(
                *_sorted(
                    np.concatenate([other.keys, run.keys]), np.concatenate([other.rows, run.rows])
                )
            )
        self._runs.append(run)


class _Run:
    """Digests sorted by their first half, with the row of each."""

    def __init__(self, keys: npt.NDArray[np.uint64], rows: npt.NDArray[np.int64]) -> None:
        self.keys = keys
        self.rows = rows

    def look_up(self, keys: npt.NDArray[np.uint64], first_rows: npt.NDArray[np.int64]) -> None:
        """Fill in the rows of the keys that this run holds."""
        heads = np.ascontiguousarray(self.keys[:, 0])
        at = np.searchsorted(heads, keys[:, 0])
        inside = at < len(heads)
        hits = np.flatnonzero(inside & (heads[np.minimum(at, len(heads) - 1)] == keys[:, 0]))
        for index in hits:
            place = int(at[index])
            while place < len(heads) and heads[place] == keys[index, 0]:
                if self.keys[place, 1] == keys[index, 1]:
                    first_rows[index] = self.rows[place]
                    break
                place += 1


def _sorted(
    keys: npt.NDArray[np.uint64], rows: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    order = np.argsort(keys[:, 0], kind="stable")
    return keys[order], rows[order]
