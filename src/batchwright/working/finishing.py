"""Makes answers readable: token ids to text, and what a row asked for beside its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import orjson

from batchwright.core.outcomes import More, Outcome, Sample
from batchwright.core.ports import Tokenizer
from batchwright.core.records import Request
from batchwright.engines.reading import RawAnswer, ReadAnswer

Answer = Outcome | Sample


class Reader(Protocol):
    """Reads the parts of answers."""

    def read(self, answers: Sequence[RawAnswer]) -> list[ReadAnswer]:
        """The parts of some answers, in order."""


class Finisher:
    """Outcomes as an engine sends them to outcomes as they are stored.

    Args:
        tokenizer: of the model.
        reader: takes thoughts and tool calls out of the text; None if there are none.
    """

    def __init__(self, tokenizer: Tokenizer, reader: Reader | None = None) -> None:
        self._tokenizer = tokenizer
        self._reader = reader

    def finish(self, outcomes: Sequence[Outcome], requests: Sequence[Request]) -> list[Outcome]:
        """The same outcomes with the text of every answer, and its parts.

        Args:
            outcomes: of any rows.
            requests: what each of them answers, in the same order.
        """
        finished = list(outcomes)
        places = [
            _Place(index, number, answer)
            for index, outcome in enumerate(outcomes)
            for number, answer in _answers(outcome)
            if outcome.error_code is None and self._is_raw(answer)
        ]
        put = self._decode if self._reader is None else self._read
        put(places, requests, finished)
        return finished

    def _is_raw(self, answer: Answer) -> bool:
        """Whether an answer is to be made readable: an endpoint's has been taken apart already."""
        if answer.more is not None and (
            answer.more.tool_calls or answer.more.reasoning is not None
        ):
            return False
        return answer.text is None or self._reader is not None

    def _decode(
        self, places: list[_Place], requests: Sequence[Request], finished: list[Outcome]
    ) -> None:
        ids = [answer_token_ids(place.answer, requests[place.outcome].sampling) for place in places]
        prompts = [requests[place.outcome].token_ids for place in places]
        for place, text in zip(places, self._tokenizer.decode(ids, prompts), strict=True):
            finished[place.outcome] = changed(finished[place.outcome], place.number, text, {})

    def _read(
        self, places: list[_Place], requests: Sequence[Request], finished: list[Outcome]
    ) -> None:
        assert self._reader is not None, "checked by the caller"
        raw = [_raw_answer(place.answer, requests[place.outcome]) for place in places]
        for place, read in zip(places, self._reader.read(raw) if raw else [], strict=True):
            outcome = finished[place.outcome]
            parts = {"reasoning": read.reasoning, "tool_calls": _calls(outcome.row, place, read)}
            finished[place.outcome] = changed(outcome, place.number, read.text, parts)


class _Place(NamedTuple):
    """An answer, the outcome that it belongs to, and its number there (-1 for the first)."""

    outcome: int
    number: int
    answer: Answer


def _raw_answer(answer: Answer, request: Request) -> RawAnswer:
    extras = orjson.loads(request.extras) if request.extras else {}
    ids = list(answer.token_ids)
    return RawAnswer(
        ids,
        len(answer_token_ids(answer, request.sampling)),
        answer.text,
        orjson.dumps(extras["tools"]).decode() if extras.get("tools") else "",
        orjson.dumps(extras.get("chat_template_kwargs") or {}).decode(),
    )


def _calls(row: int, place: _Place, read: ReadAnswer) -> tuple[dict[str, Any], ...] | None:
    """Tool calls in OpenAI's form.

    Most parsers draw a random id. One made from the row's number is as unique in the results, and
    the same whenever the answer is.
    """
    if read.calls is None:
        return None
    return tuple(
        {
            "id": given if given.startswith("functions.") else f"call_{row}_{place.number + 1}_{n}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for n, (given, name, arguments) in enumerate(read.calls)
    )


def _answers(outcome: Outcome) -> list[tuple[int, Answer]]:
    """All answers of a row by their number among the further samples; -1 for the first."""
    if outcome.more is None:
        return [(-1, outcome)]
    return [(-1, outcome), *enumerate(outcome.more.samples)]


def changed(outcome: Outcome, number: int, text: str | None, parts: dict[str, Any]) -> Outcome:
    """The outcome with the text and parts of its first answer (-1) or of a further sample."""
    parts = {name: value for name, value in parts.items() if value is not None}
    more = outcome.more
    if number < 0 or more is None:
        if parts:
            more = (more or More())._replace(**parts)
        return outcome._replace(text=text, more=more)
    samples = list(more.samples)
    sample = samples[number]
    samples[number] = sample._replace(
        text=text, more=(sample.more or More())._replace(**parts) if parts else sample.more
    )
    return outcome._replace(more=more._replace(samples=tuple(samples)))


def answer_token_ids(answer: Answer, sampling: str) -> list[int]:
    """Token ids of the answer, without the token that ended it unless the row asks for that."""
    ids = list(answer.token_ids)
    ended_by_token = bool(ids) and answer.stop_reason == str(ids[-1])
    if ended_by_token and '"include_stop_str_in_output":true' not in sampling:
        return ids[:-1]
    return ids


def spell_tokens(tokenizer: Tokenizer, outcomes: Sequence[Outcome]) -> dict[int, str]:
    """The text of every token that the log probabilities of some outcomes name."""
    ids: set[int | None] = set()
    for outcome in outcomes:
        further: Sequence[Any] = outcome.more.samples if outcome.more is not None else ()
        for answer in (outcome, *further):
            if answer.more is not None and answer.more.logprobs is not None:
                for place in answer.more.logprobs:
                    ids.add(place.chosen.token_id)
                    ids.update(one.token_id for one in place.top)
    known = sorted(token_id for token_id in ids if token_id is not None)
    return dict(zip(known, tokenizer.spell(known), strict=True))
