"""A row that a model reads in several pieces: how they lie in one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import orjson

from batchwright.core.records import Request


class Pieces(NamedTuple):
    """What `Request.extras` says of a scoring task's row.

    Attributes:
        lengths: tokens of each piece, in order; 0 for a document that is skipped.
        second_at: for each piece, where in it the second text begins; empty where the model is not
            told.
        listed: whether the row wants a list of scores, or one.
    """

    lengths: tuple[int, ...]
    second_at: tuple[int, ...] = ()
    listed: bool = False

    def dump(self) -> str:
        """As JSON."""
        return orjson.dumps(self._asdict()).decode()


def pieces_of(request: Request) -> Pieces:
    """The pieces of a row; a request that says nothing of them is one piece."""
    if not request.extras:
        return Pieces((len(request.token_ids),))
    read = orjson.loads(request.extras)
    if "lengths" not in read:
        return Pieces((len(request.token_ids),))
    return Pieces(tuple(read["lengths"]), tuple(read["second_at"]), read["listed"])


def cut(token_ids: Sequence[int], lengths: Sequence[int]) -> list[Sequence[int]]:
    """The token ids of each piece."""
    found = []
    start = 0
    for length in lengths:
        found.append(token_ids[start : start + length])
        start += length
    return found
