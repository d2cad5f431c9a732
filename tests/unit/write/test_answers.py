"""Answers of engines that tell texts and counts in place of token ids."""

from __future__ import annotations

from batchwright.core.outcomes import Logprob, More, Outcome, Sample, TokenLogprobs
from batchwright.write.answers import answer_columns


def test_a_token_of_unknown_id_keeps_its_text() -> None:
    told = TokenLogprobs(Logprob(None, -0.5, 1, "yes"), (Logprob(None, -0.5, 1, "yes"),))
    known = TokenLogprobs(Logprob(7, -0.1, 1))
    outcomes = [Outcome(0, [], text="yes", more=More(logprobs=(told, known)))]
    (row,) = answer_columns(outcomes, {7: "seven"})["logprobs"].to_pylist()
    assert [(one["token"], one["token_id"]) for one in row] == [("yes", None), ("seven", 7)]
    assert row[0]["top"] == [{"token": "yes", "token_id": None, "logprob": -0.5, "rank": 1}]


def test_tokens_are_counted_by_the_engine_or_not_at_all() -> None:
    samples = (Sample([], "b", "stop"), Sample([], "", "stop"), Sample([1, 2], "c", "stop"))
    outcome = Outcome(0, [], text="a", more=More(samples=samples, completion_tokens=9))
    columns = answer_columns([outcome], {})
    assert columns["completion_tokens"].to_pylist() == [9]
    (choices,) = columns["choices"].to_pylist()
    assert [one["completion_tokens"] for one in choices] == [None, None, 0, 2]
