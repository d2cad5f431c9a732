"""Vectors to outcomes: cut, brought to length 1, checked, and as bytes."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from batchwright.core.outcomes import Outcome
from batchwright.core.vectors import EmbeddingSettings

_NOISE = 1 << 14


def finished(vectors: npt.NDArray[Any], embedding: EmbeddingSettings) -> npt.NDArray[Any]:
    """A model's raw vectors as the job wants them: the first numbers, length 1, stored type.

    Args:
        vectors: float32 [rows, numbers], with at least `embedding.dimensions` numbers.
        embedding: what is wanted.
    """
    cut = vectors[:, : embedding.dimensions].astype(np.float32)
    if embedding.normalize:
        lengths = np.linalg.norm(cut, axis=1, keepdims=True)
        cut = cut / np.maximum(lengths, 1e-12)
    with np.errstate(over="ignore"):  # what float16 cannot hold becomes infinite, and is found
        return cut.astype(np.dtype(embedding.dtype))


def vector_outcomes(rows: Sequence[int], vectors: npt.NDArray[Any]) -> list[Outcome]:
    """Outcomes of rows, in order; a vector that is not finite fails its row.

    Args:
        rows: row numbers.
        vectors: [rows, dimensions], as they are to be stored.
    """
    width = vectors.shape[1] * vectors.itemsize
    data = np.ascontiguousarray(vectors).tobytes()
    outcomes = [
        Outcome(row, [], embedding=data[start : start + width])
        for row, start in zip(rows, range(0, len(data), width), strict=True)
    ]
    for place in np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist():
        error = "the vector holds a number that is not finite"
        outcomes[place] = Outcome(rows[place], [], error_code="bad_embedding", error=error)
    return outcomes


def made_up_vectors(
    prompts: Sequence[Sequence[int]], embedding: EmbeddingSettings
) -> npt.NDArray[Any]:
    """A vector for each prompt that depends on its ids alone: what the fake engine answers."""
    noise = _noise(embedding.dimensions)
    first = np.array([zlib.crc32(array("i", ids)) % _NOISE for ids in prompts], np.int64)
    return finished(noise[first[:, None] + np.arange(embedding.dimensions)], embedding)


@lru_cache(maxsize=2)
def _noise(dimensions: int) -> npt.NDArray[Any]:
    return np.random.default_rng(0).standard_normal(_NOISE + dimensions, dtype=np.float32)
