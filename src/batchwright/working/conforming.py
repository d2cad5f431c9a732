"""Answers of rows with structured output: valid, asked for again, or failed for good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import orjson

from batchwright.constraints.answers import Verdict, check_answer
from batchwright.core.ids import canonical_json
from batchwright.core.outcomes import More, Outcome, Sample
from batchwright.core.records import Request
from batchwright.core.structured import Constraint, constraint_in
from batchwright.working.finishing import Finisher

# A greedy row would give the same answer again: each further attempt is this much warmer.
WARMER_BY = 0.3
WARMEST = 1.0

_MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Open:
    """A row in the engine whose answer must keep to something."""

    request: Request
    constraint: Constraint
    retries: int = 0
    attempts_before: int = 0  # of the requests before this one, engine deaths included

    def next_request(self) -> Request:
        """The row's request as it goes into the engine again."""
        return self.request._replace(sampling=changed(self.request.sampling, self.retries))


class Conformer:
    """Checks the outcomes of rows with structured output before they count.

    It knows a row from `watch` until its last outcome has gone through `judge`. A row that is
    asked for again has no outcome yet for anybody else: it stays where it is, and its copies wait.

    Args:
        finisher: gives the texts; what it takes out of them (thoughts) is not checked.
        max_retries: so many times an answer that is not valid is asked for again.
        at_last: whether a row whose answers are never valid fails, or keeps its answer.
    """

    def __init__(
        self,
        finisher: Finisher,
        max_retries: int,
        at_last: Literal["fail", "keep"] = "fail",
    ) -> None:
        self._finisher = finisher
        self._max_retries = max_retries
        self._at_last = at_last
        self._open: dict[int, _Open] = {}

    def watch(self, request: Request) -> None:
        """Take note of a request that goes into the engine, if its answer is to be checked."""
        constraint = constraint_in(request.sampling)
        if constraint is not None:
            self._open[request.row] = _Open(request, constraint)

    def judge(self, outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[Request]]:
        """The outcomes that count, and the requests that must go into the engine again."""
        if not self._open:
            return list(outcomes), []
        finals = [one for one in outcomes if one.row not in self._open]
        again: list[Request] = []
        for outcome in self._with_texts([one for one in outcomes if one.row in self._open]):
            found = self._judge_row(outcome, self._open.pop(outcome.row))
            if isinstance(found, Outcome):
                finals.append(found)
            else:
                self._open[outcome.row] = found
                again.append(found.next_request())
        return finals, again

    def _with_texts(self, outcomes: list[Outcome]) -> list[Outcome]:
        requests = [self._open[one.row].request for one in outcomes]
        if not outcomes:
            return []
        return self._finisher.finish(outcomes, requests)

    def _judge_row(self, outcome: Outcome, row: _Open) -> Outcome | _Open:
        attempts = row.attempts_before + outcome.attempts
        counted = outcome._replace(attempts=attempts)
        if outcome.error_code is not None:
            return counted
        answers = answers_of(outcome)
        verdicts = [verdict_of(one, row.constraint) for one in answers]
        bad = [index for index, one in enumerate(verdicts) if one.problem is not None]
        if not bad:
            return with_parsed(counted, verdicts)
        hopeless = any(verdicts[index].hopeless or is_cut(answers[index]) for index in bad)
        if not hopeless and row.retries < self._max_retries:
            return replace(row, retries=row.retries + 1, attempts_before=attempts)
        if self._at_last == "keep":
            return with_parsed(counted, verdicts)
        error = describe(answers, verdicts, bad[0], row.request.max_tokens)
        return with_parsed(counted, verdicts)._replace(error_code="invalid_output", error=error)


def answers_of(outcome: Outcome) -> list[Outcome | Sample]:
    """All answers of a row, the first one first."""
    return [outcome, *(outcome.more.samples if outcome.more is not None else ())]


def verdict_of(answer: Outcome | Sample, constraint: Constraint) -> Verdict:
    """Whether one answer keeps to the constraint; one that calls tools says nothing in its text."""
    if answer.more is not None and answer.more.tool_calls is not None:
        return Verdict()
    return check_answer(constraint, answer.text or "", cut=is_cut(answer))


def is_cut(answer: Outcome | Sample) -> bool:
    """Whether an answer ended at its cap: asking again with the same cap would be in vain."""
    return answer.finish_reason == "length"


def with_parsed(outcome: Outcome, verdicts: Sequence[Verdict]) -> Outcome:
    """The outcome with the JSON of each of its answers that is valid."""
    if all(one.parsed is None for one in verdicts):
        return outcome
    more = outcome.more or More()
    samples = tuple(
        one._replace(more=(one.more or More())._replace(parsed=verdict.parsed))
        for one, verdict in zip(more.samples, verdicts[1:], strict=True)
    )
    return outcome._replace(more=more._replace(samples=samples, parsed=verdicts[0].parsed))


def describe(
    answers: Sequence[Outcome | Sample], verdicts: Sequence[Verdict], bad: int, max_tokens: int
) -> str:
    """Why a row failed, for people."""
    which = f"answer {bad + 1} of {len(answers)}: " if len(answers) > 1 else ""
    problem = verdicts[bad].problem
    if is_cut(answers[bad]):
        return f"{which}cut at max_tokens {max_tokens}; raise sampling.max_tokens ({problem})"
    return f"{which}{problem}"


@lru_cache(maxsize=1024)
def changed(sampling: str, retry: int) -> str:
    """Sampling fields with which the same prompt may have another answer.

    Random rows are random again as they are. A seed is counted on, and greedy rows get a little
    temperature with a seed, so that a run that would repeat itself still does.
    """
    fields = orjson.loads(sampling)
    temperature, seed = fields.get("temperature", 1.0), fields.get("seed")
    if temperature > 0 and seed is None:
        return sampling
    if temperature == 0:
        fields["temperature"] = min(WARMEST, round(WARMER_BY * retry, 3))
    fields["seed"] = min((seed or 0) + retry, _MAX_SEED)
    return canonical_json(fields)
