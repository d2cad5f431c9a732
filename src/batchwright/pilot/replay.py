"""The pilot's rows once more, and again: the same work each time, and new to the prefix cache."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Sequence

import orjson

from batchwright.core.records import Request

# They would end an answer before it has its length, or keep it from ending.
_ENDINGS = ("stop", "stop_token_ids", "min_tokens", "include_stop_str_in_output")


def with_length(request: Request, output_tokens: int) -> Request:
    """The request with an answer of exactly so many tokens, whatever they are.

    Without it, sampled answers would be longer with one setting than with another by chance. A
    grammar ends its answers itself and stays.
    """
    fields = orjson.loads(request.sampling or "{}")
    if fields.get("structured_outputs") is None:
        fields = {name: value for name, value in fields.items() if name not in _ENDINGS}
        fields["ignore_eos"] = True
    sampling = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode()
    return request._replace(max_tokens=max(1, output_tokens), sampling=sampling)


def replay(rows: Sequence[Request]) -> Iterator[Request]:
    """The rows in their order, without end, each under a number of its own.

    In each round the second token of a row (the first may be the one that every text begins with)
    is exchanged for another of the tokens in use: always the same for the same. So rows share
    within a round what they shared before, and nothing with the rounds before: a prefix cache
    cannot make later rounds look faster. A job of few words soon comes round to the same tokens:
    the third and fourth token change then.

    Args:
        rows: not empty, with prompts that are not empty.
    """
    marked = sorted({row.token_ids[_place(row, 1)] for row in rows})
    others = {token for row in rows for token in row.token_ids}.difference(marked)
    tokens = [*marked, *sorted(others)]
    rank = {token: index for index, token in enumerate(tokens)}
    numbers = itertools.count()
    for turn in itertools.count():
        wraps, shift = divmod(turn * len(marked), len(tokens))
        shifts = (shift, wraps % len(tokens), wraps // len(tokens) % len(tokens))
        for row in rows:
            ids = array("i", row.token_ids)
            for place, by in enumerate(shifts, start=1):
                at = _place(row, place)
                if place in (1, at):
                    ids[at] = tokens[(rank[ids[at]] + by) % len(tokens)]
            yield row._replace(row=next(numbers), token_ids=ids)


def _place(row: Request, wanted: int) -> int:
    return min(wanted, len(row.token_ids) - 1)
