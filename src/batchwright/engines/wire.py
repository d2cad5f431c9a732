"""Requests and outcomes as a few large columns: what crosses the pipe between two processes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from struct import pack
from typing import Any

from batchwright.core.outcomes import Outcome
from batchwright.core.records import Request

# Pickled row by row, the token ids alone would take most of the time: each is an object of its
# own on the other side. A column of them is one block of bytes.
Columns = tuple[Any, ...]


def pack_requests(requests: Sequence[Request]) -> Columns:
    """Requests as columns, in order; equal sampling fields go once."""
    known: dict[str, int] = {}
    sampling = array("i", [known.setdefault(one.sampling, len(known)) for one in requests])
    return (
        array("q", [one.row for one in requests]),
        *_pack_ids(one.token_ids for one in requests),
        array("q", [one.max_tokens for one in requests]),
        sampling,
        list(known),
        _if_any([one.extras for one in requests]),
        _if_any([one[-2:] if any(one[-2:]) else None for one in requests]),
    )


def unpack_requests(columns: Columns) -> list[Request]:
    """The requests again, their token ids in arrays."""
    rows, lengths, data, max_tokens, sampling, known, extras, media = columns
    ids = _unpack_ids(lengths, data)
    spelled = [known[index] for index in sampling]
    requests = map(Request, rows, ids, max_tokens, spelled, extras or [""] * len(rows))
    if media is None:
        return list(requests)
    return [
        one if own is None else one._replace(media=own[0], media_tokens=own[1])
        for one, own in zip(requests, media, strict=True)
    ]


def pack_outcomes(outcomes: Sequence[Outcome]) -> Columns:
    """Outcomes as columns, in order; what many have in common, as a rule all, goes once."""
    known: dict[tuple[Any, ...], int] = {}
    rest = array("i", [known.setdefault(one[2:-3], len(known)) for one in outcomes])
    return (
        array("q", [one.row for one in outcomes]),
        *_pack_ids(one.token_ids for one in outcomes),
        rest,
        list(known),
        _if_any([one.embedding for one in outcomes]),
        _if_any([one.more for one in outcomes]),
        _if_any([one.generating_s for one in outcomes]),
    )


def unpack_outcomes(columns: Columns) -> list[Outcome]:
    """The outcomes again, their token ids in arrays: 4 bytes a token, not 36."""
    rows, lengths, data, rest, known, vectors, more, generating = columns
    ids = _unpack_ids(lengths, data)
    none = [None] * len(rows)
    return [
        Outcome._make((row, answer, *known[index], vector, further, seconds))
        for row, answer, index, vector, further, seconds in zip(
            rows, ids, rest, vectors or none, more or none, generating or none, strict=True
        )
    ]


def _if_any(values: list[Any]) -> list[Any] | None:
    """A column that nearly no job fills: nothing of it travels unless a row has a value."""
    return values if any(value not in (None, "") for value in values) else None


def _pack_ids(rows: Iterable[Sequence[int]]) -> tuple[array[int], bytes]:
    """Lengths and all ids of some rows."""
    packed = [_ids_to_bytes(ids) for ids in rows]
    return array("i", [len(ids) // 4 for ids in packed]), b"".join(packed)


def _ids_to_bytes(ids: Sequence[int]) -> bytes:
    if isinstance(ids, array) and ids.typecode == "i":
        return ids.tobytes()
    # `struct` takes 22 ns for each int of a list; `array` 38, a pickle 27 here and 53 there.
    return pack(f"{len(ids)}i", *ids)


def _unpack_ids(lengths: array[int], data: bytes) -> Iterator[array[int]]:
    flat = array("i")
    flat.frombytes(data)
    return (flat[start:stop] for start, stop in pairwise(accumulate(lengths, initial=0)))
