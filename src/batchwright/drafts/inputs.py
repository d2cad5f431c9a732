"""What a model reads where no answer follows: one text, a conversation, or a query with documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from batchwright.config.job import Job
from batchwright.core.errors import RowError
from batchwright.core.ports import Tokenizer
from batchwright.core.records import Prompt, TextPair
from batchwright.core.tasks import TaskName
from batchwright.tokens.pairs import FittedPair, PairFitter
from batchwright.validate.pairs import PairReader


class PairPreparer:
    """Makes rows with a query and documents ready for the engine.

    Args:
        job: with the section scoring, as the survey resolved it.
        tokenizer: of the model.
        limit: tokens that the model reads at once.
    """

    def __init__(self, job: Job, tokenizer: Tokenizer, limit: int) -> None:
        wanted = job.scoring
        self._reader = make_pair_reader(job)
        apart = wanted.method == "vectors"
        self._fitter = PairFitter(tokenizer, limit, job.plan.over_length, apart=apart)
        self._ahead = (wanted.query_prompt or "", wanted.document_prompt or "")

    def read(self, record: Mapping[str, Any]) -> TextPair:
        """The texts of a row, as it brings them. Raises RowError."""
        return self._reader.read(record)

    def fit(self, pairs: Sequence[TextPair]) -> list[FittedPair | RowError]:
        """One result per row, in order; the job's own words go ahead of each text."""
        query, document = self._ahead
        if query or document:
            pairs = [
                TextPair(
                    query + pair.query,
                    tuple(None if text is None else document + text for text in pair.documents),
                    pair.listed,
                )
                for pair in pairs
            ]
        return self._fitter.fit(pairs)

    def fit_drafts(self, drafts: Sequence[Any]) -> None:
        """Give drafts of rows their token ids, or the reason why they have none."""
        asked = [draft for draft in drafts if draft.pair is not None and draft.problem is None]
        fitted = self.fit([draft.pair for draft in asked])
        for draft, found in zip(asked, fitted, strict=True):
            draft.max_tokens = 0
            if isinstance(found, RowError):
                draft.reject(found.code, found.message)
                continue
            draft.token_ids, draft.truncated = found.token_ids, found.truncated
            draft.extras = found.pieces.dump()
            if found.skipped:
                draft.warn("document_skipped")


def make_pair_reader(job: Job) -> PairReader:
    """The job's columns as a reader."""
    wanted = job.scoring
    return PairReader(wanted.query, wanted.document, wanted.documents)


def input_prompt(task: TaskName, prompt: Prompt, ahead: str) -> Prompt:
    """What the model reads of a row's prompt, by the task. Raises RowError."""
    if task == "generate":
        return prompt
    if prompt.messages is not None:
        if task == "embed":
            raise RowError("unsupported", "an embedding is made of text, not of messages")
        kwargs = {**(prompt.template_kwargs or {}), "add_generation_prompt": False}
        return prompt._replace(template_kwargs=kwargs)
    if prompt.text is not None:
        return Prompt(ahead + prompt.text)
    if ahead:
        raise RowError("bad_prompt", "embedding.prompt cannot be put ahead of token ids")
    return prompt


def own_text(pair: TextPair) -> Prompt:
    """All texts of a row in one, to look for what is odd in them."""
    return Prompt("\n".join([pair.query, *(text for text in pair.documents if text)]))
