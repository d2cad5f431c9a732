"""Makes answers readable: token ids to text, and what a row asked for beside its text."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from batchwright.core.outcomes import Outcome, Sample
from batchwright.core.ports import Tokenizer

Answer = Outcome | Sample


class Finisher:
    """Outcomes as an engine sends them to outcomes as they are stored.

    Args:
        tokenizer: of the model.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def finish(
        self,
        outcomes: Sequence[Outcome],
        prompts: Sequence[array[int]],
        sampling: Sequence[str],
    ) -> list[Outcome]:
        """The same outcomes with the text of every answer.

        Args:
            outcomes: of any rows.
            prompts: the token ids that went before each.
            sampling: canonical JSON of each row's sampling fields.
        """
        places: list[tuple[int, int]] = []  # outcome, and its sample or -1 for the first answer
        ids: list[list[int]] = []
        for index, outcome in enumerate(outcomes):
            for number, answer in _answers(outcome):
                if answer.text is None and outcome.error_code is None:
                    places.append((index, number))
                    ids.append(answer_token_ids(answer, sampling[index]))
        texts = self._tokenizer.decode(ids, [prompts[index] for index, _ in places])
        finished = list(outcomes)
        for (index, number), text in zip(places, texts, strict=True):
            finished[index] = with_text(finished[index], number, text)
        return finished


def _answers(outcome: Outcome) -> list[tuple[int, Answer]]:
    """All answers of a row by their number among the further samples; -1 for the first."""
    if outcome.more is None:
        return [(-1, outcome)]
    return [(-1, outcome), *enumerate(outcome.more.samples)]


def with_text(outcome: Outcome, number: int, text: str) -> Outcome:
    """The outcome with the text of its first answer (-1) or of a further sample."""
    if number < 0 or outcome.more is None:
        return outcome._replace(text=text)
    samples = list(outcome.more.samples)
    samples[number] = samples[number]._replace(text=text)
    return outcome._replace(more=outcome.more._replace(samples=tuple(samples)))


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
