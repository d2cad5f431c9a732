"""What an embedding is: how it is pooled, how long it is, how its numbers are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Pooling = Literal["mean", "cls", "last"]
VectorDtype = Literal["float32", "float16"]


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """The vector that each row gets.

    Attributes:
        pooling: how the vectors of the tokens become one.
        dimensions: numbers per vector: the first so many of the model's own.
        normalize: whether a vector is brought to length 1, after it was cut.
        dtype: type of the numbers, in little-endian order.
    """

    pooling: Pooling
    dimensions: int
    normalize: bool = True
    dtype: VectorDtype = "float32"

    @property
    def width_bytes(self) -> int:
        """Bytes of one vector."""
        return self.dimensions * (4 if self.dtype == "float32" else 2)
