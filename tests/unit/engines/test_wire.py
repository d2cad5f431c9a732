"""What goes into the pipe comes out of it."""

from __future__ import annotations

import pickle
from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from batchwright.core.outcomes import Logprob, More, Outcome, Sample, TokenLogprobs
from batchwright.core.records import Request
from batchwright.engines.wire import (
    pack_outcomes,
    pack_requests,
    unpack_outcomes,
    unpack_requests,
)

IDS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=8)
ROWS = st.integers(0, 2**40)
TEXTS = st.none() | st.text(max_size=4)
REQUESTS = st.builds(
    Request,
    ROWS,
    IDS | IDS.map(lambda ids: array("i", ids)),
    st.integers(0, 2**40),
    st.text(),
    st.text(max_size=3),
)
LOGPROBS = st.tuples(st.integers(0, 9), st.none() | st.floats(-9, 0)).map(
    lambda values: TokenLogprobs(Logprob(*values), (Logprob(*values),))
)
SAMPLES = st.tuples(IDS, TEXTS, TEXTS, TEXTS).map(lambda values: Sample(*values))
MORE = st.tuples(
    st.lists(SAMPLES, max_size=2).map(tuple),
    st.none() | st.lists(LOGPROBS, max_size=2).map(tuple),
    TEXTS,
).map(lambda values: More(*values))
OUTCOMES = st.builds(
    lambda **fields: Outcome(**fields),
    row=ROWS,
    token_ids=IDS,
    text=TEXTS,
    finish_reason=TEXTS,
    stop_reason=TEXTS,
    cached_tokens=st.integers(0, 2**40),
    error_code=TEXTS,
    error=TEXTS,
    attempts=st.integers(1, 9),
    embedding=st.none() | st.binary(min_size=1, max_size=8),
    more=st.none() | MORE,
    generating_s=st.none() | st.floats(0, 9),
)


def plain(records: list[Any]) -> list[tuple[Any, ...]]:
    """Their ids as lists, whatever held them."""
    return [tuple(record._replace(token_ids=list(record.token_ids))) for record in records]


@given(st.lists(REQUESTS, max_size=6))
def test_requests_arrive_as_they_were_sent(requests: list[Request]) -> None:
    arrived = unpack_requests(pickle.loads(pickle.dumps(pack_requests(requests))))
    assert plain(arrived) == plain(requests)


@given(st.lists(OUTCOMES, max_size=6))
def test_outcomes_arrive_as_they_were_sent(outcomes: list[Outcome]) -> None:
    arrived = unpack_outcomes(pickle.loads(pickle.dumps(pack_outcomes(outcomes))))
    assert plain(arrived) == plain(outcomes)


def test_an_array_of_another_width_is_not_taken_by_its_bytes() -> None:
    (arrived,) = unpack_requests(pack_requests([Request(1, array("q", [5, 6]), 3, "{}")]))
    assert list(arrived.token_ids) == [5, 6]


def test_a_thousand_rows_of_one_kind_say_it_once() -> None:
    outcomes = [Outcome(row, [1, 2], None, "length", None, 64) for row in range(1000)]
    assert len(pickle.dumps(pack_outcomes(outcomes))) < 1000 * (8 + 4 + 2 * 4 + 4) + 1000
