"""The few largest shared prefixes of a block table."""

from __future__ import annotations

import numpy as np

from batchwright.profile.table import BlockTable

# Prefixes looked at for each one that is wanted: most of them lie on the same path.
_CANDIDATES = 256


def largest_prefixes(table: BlockTable, number: int) -> list[tuple[int, int, int]]:
    """(blocks, rows, one of the rows) of the prefixes whose sharing saves most tokens.

    Of prefixes on one path, a longer or shorter one is shown as well only if its number of rows
    differs by a factor of two or more.
    """
    size = len(table)
    count, depth = table.count[:size].astype(np.int64), table.depth[:size].astype(np.int64)
    saved = (count - 1) * depth
    wanted = min(number * _CANDIDATES, size)
    best = np.argpartition(saved, size - wanted)[size - wanted :] if wanted else np.zeros(0, int)
    # The deeper one first where two save the same; the signature only makes it repeatable.
    best = best[np.lexsort((table.signature[best], -depth[best], -saved[best]))]
    chosen: list[int] = []
    for entry in best.tolist():
        if len(chosen) == number or saved[entry] <= 0:
            break
        if not any(_alike(table, entry, other) for other in chosen):
            chosen.append(entry)
    return [(int(depth[one]), int(count[one]), int(table.last[one])) for one in chosen]


def _alike(table: BlockTable, one: int, other: int) -> bool:
    fewer, more = sorted((int(table.count[one]), int(table.count[other])))
    return 2 * fewer > more and (_is_above(table, one, other) or _is_above(table, other, one))


def _is_above(table: BlockTable, one: int, other: int) -> bool:
    """Whether `one` lies on the path from the root to `other`."""
    while other >= 0 and table.depth[other] > table.depth[one]:
        other = int(table.parent[other])
    return other == one
