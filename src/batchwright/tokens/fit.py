"""Prompt and answer fitted into the context together: rejected, or cut where no harm is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from batchwright.core.errors import RowError
from batchwright.core.ports import Tokenizer
from batchwright.core.records import Prompt

OverLength = Literal["reject", "truncate_left", "truncate_right"]

# Stands for the last message's content while the template's words around it are looked for.
_MARK = "xBATCHWRIGHTxCUTSxHEREx"

# Tokenising takes time by the length of the whole text, also of what is then thrown away. Four
# characters make a token of English; a text with so few tokens all the same is read as a whole.
_CHARS_PER_TOKEN = 16
_SLACK_TOKENS = 8


class Fitted(NamedTuple):
    """What the engine is asked for."""

    token_ids: list[int]
    max_tokens: int
    truncated: bool


class _Parts(NamedTuple):
    """The token ids of a prompt: only `body` may be cut."""

    head: list[int]
    body: list[int]
    tail: list[int]


class InputFitter:
    """Makes inputs fit that no answer follows: vectors and scores. Special tokens stay."""

    def __init__(self, tokenizer: Tokenizer, limit: int, over_length: OverLength) -> None:
        self._tokenizer = tokenizer
        self._head, self._tail = tokenizer.special_ends
        self._limit = limit
        self._over_length = over_length

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts to ids between the special tokens that the model wants, each once.

        Of a text of which only the beginning will be kept, only so much may be tokenised as that
        takes: what `fit` makes of the ids is the same.
        """
        shown = [self._beginning(text) for text in texts]
        rows = self._tokenizer.encode(shown, add_special_tokens=False)
        for index, (text, part) in enumerate(zip(texts, shown, strict=True)):
            if len(part) < len(text) and len(rows[index]) < self._limit + _SLACK_TOKENS:
                (rows[index],) = self._tokenizer.encode([text], add_special_tokens=False)
        return [self._with_specials(ids) for ids in rows]

    def _beginning(self, text: str) -> str:
        """Enough of a text for `limit` tokens, cut between words; or all of it."""
        wanted = _CHARS_PER_TOKEN * self._limit
        if self._over_length != "truncate_right" or len(text) <= wanted:
            return text
        return text[: text.rfind(" ", 0, wanted) + 1].rstrip() or text

    def _with_specials(self, ids: list[int]) -> list[int]:
        head, tail = self._head, self._tail
        if head and ids[: len(head)] == head:
            head = []
        if tail and ids[-len(tail) :] == tail:
            tail = []
        return [*head, *ids, *tail] if head or tail else ids

    def fit(self, ids: list[int], *, whole: bool = False) -> Fitted:
        """Fit an input into the limit, special tokens included.

        Args:
            ids: of the input.
            whole: it may not be cut, whatever the job says.

        Raises:
            RowError: `prompt_too_long`.
        """
        if len(ids) <= self._limit:
            return Fitted(ids, 0, truncated=False)
        head = self._head if ids[: len(self._head)] == self._head else []
        tail = self._tail if ids[len(ids) - len(self._tail) :] == self._tail else []
        room = self._limit - len(head) - len(tail)
        if whole or self._over_length == "reject" or room < 1:
            raise RowError(
                "prompt_too_long",
                f"the input has {len(ids)} tokens; the model reads {self._limit} at most",
            )
        body = ids[len(head) : len(ids) - len(tail)]
        body = body[-room:] if self._over_length == "truncate_left" else body[:room]
        return Fitted([*head, *body, *tail], 0, truncated=True)


class Fitter:
    """Makes prompts fit.

    A prompt is too long when it leaves no room for the shortest answer that its row allows. One
    that fits is never cut: its answer is capped to the room that is left.
    """

    def __init__(self, tokenizer: Tokenizer, limit: int, over_length: OverLength) -> None:
        self._tokenizer = tokenizer
        self._limit = limit
        self._over_length = over_length
        (self._prefix,) = tokenizer.encode([""], add_special_tokens=True)

    def fit(
        self,
        prompt: Prompt,
        ids: list[int],
        max_tokens: int,
        shortest: int,
        media_tokens: int = 0,
    ) -> Fitted:
        """Fit a prompt and its answer into the limit.

        Args:
            prompt: what `ids` were made of.
            ids: the prompt's token ids.
            max_tokens: tokens of the answer at most.
            shortest: tokens of the answer at least.
            media_tokens: what images and sounds add to the prompt.

        Raises:
            RowError: `prompt_too_long`.
        """
        room = self._limit - len(ids) - media_tokens
        if room >= shortest:
            return Fitted(ids, min(max_tokens, room), truncated=False)
        if self._over_length == "reject":
            raise self._too_long(
                len(ids) + media_tokens,
                f"which leaves {max(room, 0)} for an answer of at least {shortest}",
            )
        if prompt.media:
            raise self._too_long(
                len(ids) + media_tokens, "and rows with images or audio stay whole"
            )
        answer = max(shortest, min(max_tokens, self._limit // 2))
        cut = self._cut(prompt, ids, self._limit - answer)
        return Fitted(cut, answer, truncated=True)

    def _cut(self, prompt: Prompt, ids: list[int], keep: int) -> list[int]:
        head, body, tail = self._parts(prompt, ids)
        room = keep - len(head) - len(tail)
        if room < 1:
            raise self._too_long(
                len(ids),
                f"and the {len(head) + len(tail)} tokens that must not be cut leave no room for "
                f"the rest and an answer of {self._limit - keep}",
            )
        body = body[-room:] if self._over_length == "truncate_left" else body[:room]
        return [*head, *body, *tail]

    def _parts(self, prompt: Prompt, ids: list[int]) -> _Parts:
        if prompt.messages is not None:
            return self._chat_parts(prompt, ids)
        # Many models answer nonsense to a text without its BOS.
        size = len(self._prefix) if ids[: len(self._prefix)] == self._prefix else 0
        return _Parts(ids[:size], ids[size:], [])

    def _chat_parts(self, prompt: Prompt, ids: list[int]) -> _Parts:
        """Head: all up to the last message's content. Tail: its end and the answer's header.

        Without the header the model would go on with the user's words instead of answering.
        """
        text = self._tokenizer.render_chat(prompt)
        *before, last = prompt.messages or []
        marked = prompt._replace(messages=[*before, {**last, "content": _MARK}])
        try:
            head, mark, tail = self._tokenizer.render_chat(marked).rpartition(_MARK)
        except RowError:
            mark = ""
        # A template may write other words around other contents, or the content twice.
        if not mark or not (text.startswith(head) and text[len(head) :].endswith(tail)):
            raise self._too_long(len(ids), "and its chat template does not let it be cut")
        body = text[len(head) : len(text) - len(tail)]
        return _Parts(*self._tokenizer.encode([head, body, tail], add_special_tokens=False))

    def _too_long(self, num_tokens: int, why: str) -> RowError:
        return RowError(
            "prompt_too_long",
            f"the prompt has {num_tokens} tokens; the limit is {self._limit} for prompt and answer "
            f"together, {why}",
        )
