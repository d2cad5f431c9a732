"""Prompts with known sharing, and the plainest possible prefix cache to check against."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

import numpy as np

Rows = list[list[int]]


def flat(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.array([token for row in rows for token in row], dtype=np.int32)
    return ids, offsets, lengths


def paths(rows: Sequence[Sequence[int]], block_size: int) -> list[list[int]]:
    """Each row's prefixes of whole blocks, named by numbers: equal only if the tokens are."""
    names: dict[tuple[int, tuple[int, ...]], int] = {}
    out = []
    for row in rows:
        path, parent = [], 0
        for start in range(0, len(row) - block_size + 1, block_size):
            key = (parent, tuple(row[start : start + block_size]))
            parent = names.setdefault(key, len(names) + 1)
            path.append(parent)
        out.append(path)
    return out


def lru_hit_rate(rows: Sequence[Sequence[int]], block_size: int, cache_tokens: int | None) -> float:
    """Share of prompt tokens found in a simulated LRU cache of whole blocks, rows one by one."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for row, path in zip(rows, paths(rows, block_size), strict=True):
        for block in path[: max(len(row) - 1, 0) // block_size]:
            if block not in cache:
                break
            hits += block_size
        for block in reversed(path):  # the end of the prompt is the first to be forgotten
            cache.pop(block, None)
            cache[block] = None
        while cache_tokens is not None and len(cache) * block_size > cache_tokens:
            cache.popitem(last=False)
    return hits / max(sum(map(len, rows)), 1)


def repeated_share(rows: Sequence[Sequence[int]], block_size: int) -> float:
    seen: set[int] = set()
    repeated = 0
    for path in paths(rows, block_size):
        repeated += block_size * sum(block in seen for block in path)
        seen.update(path)
    return repeated / max(sum(map(len, rows)), 1)


def shared_blocks(rows: Sequence[Sequence[int]], block_size: int) -> dict[int, int]:
    """Depth in blocks to the number of distinct prefixes that two or more rows have."""
    every = paths(rows, block_size)
    counts = Counter(block for path in every for block in path)
    depths = {block: depth for path in every for depth, block in enumerate(path, 1)}
    return dict(Counter(depths[block] for block, count in counts.items() if count > 1))


def _tokens(rng: np.random.Generator, low: int, high: int) -> list[int]:
    return rng.integers(0, 50_000, size=int(rng.integers(low, high + 1))).tolist()


def system_prompt(rng: np.random.Generator, rows: int) -> Rows:
    head = _tokens(rng, 150, 150)
    return [head + _tokens(rng, 5, 120) for _ in range(rows)]


def documents(rng: np.random.Generator, rows: int, documents: int = 40) -> Rows:
    heads = [_tokens(rng, 100, 600) for _ in range(documents)]
    return [heads[int(rng.integers(documents))] + _tokens(rng, 5, 40) for _ in range(rows)]


def popular_documents(rng: np.random.Generator, rows: int) -> Rows:
    heads = [_tokens(rng, 100, 300) for _ in range(300)]
    which = np.minimum(rng.zipf(1.3, size=rows) - 1, 299)
    return [heads[one] + _tokens(rng, 5, 40) for one in which]


def tree(rng: np.random.Generator, rows: int) -> Rows:
    """Three levels: one instruction of five, a part of it, a question; whole repeats too."""
    parts: dict[tuple[int, ...], list[int]] = {}
    out: Rows = []
    for _ in range(rows):
        prompt: list[int] = []
        path: tuple[int, ...] = ()
        for width in (5, 6, 8):
            path = (*path, int(rng.integers(width)))
            prompt = prompt + parts.setdefault(path, _tokens(rng, 20, 90))
        out.append(prompt + (_tokens(rng, 1, 30) if rng.random() < 0.7 else []))
    return out


def no_sharing(rng: np.random.Generator, rows: int) -> Rows:
    return [_tokens(rng, 1, 200) for _ in range(rows)]


WORKLOADS = {
    "system prompt": system_prompt,
    "documents": documents,
    "popular documents": popular_documents,
    "tree": tree,
    "no sharing": no_sharing,
}
