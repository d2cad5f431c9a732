"""What the two ways to lay rows out for an encoder have in common: a flat buffer and its shape."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from batchwright.core.records import Request


@dataclass(frozen=True, slots=True)
class Shape:
    """What a packed buffer holds.

    Attributes:
        size: numbers used: `rows` lengths, then token ids.
        rows: of the batch.
        longest: tokens of its longest row.
        padded: whether any row was filled up.
    """

    size: int
    rows: int
    longest: int
    padded: bool


class Queue(Protocol):
    """Rows that wait, and give themselves out in batches."""

    max_tokens: int

    def __len__(self) -> int: ...

    def add(self, requests: Sequence[Request]) -> None:
        """Queue rows."""

    def remove(self, rows: Collection[int]) -> None:
        """Forget rows."""

    def take(self) -> list[Request]:
        """The next batch; empty when nothing waits."""


class Layout(Protocol):
    """How a batch lies in memory, and how a model reads it."""

    def queue(self, max_tokens: int) -> Queue:
        """Where rows wait and are put together."""

    def pack(self, into: Any, batch: Sequence[Request]) -> Shape:
        """Lay a batch into an int32 array: the lengths, then the token ids."""

    def vectors(self, model: Any, there: Any, shape: Shape, pooling: str) -> Any:
        """Begin to compute the pooled vectors [rows, numbers] of a batch on the device."""


def as_array(ids: Sequence[int]) -> array[int]:
    """Token ids as 32-bit numbers in one block."""
    return ids if type(ids) is array else array("i", ids)


def lengths_of(batch: Sequence[Request]) -> npt.NDArray[np.int32]:
    """Tokens of each row."""
    return np.fromiter((len(one.token_ids) for one in batch), np.int32, len(batch))


def flat_ids(batch: Sequence[Request]) -> npt.NDArray[np.int32]:
    """The token ids of all rows, one after the other."""
    return np.frombuffer(b"".join([as_array(one.token_ids) for one in batch]), np.int32)
