"""Texts that belong together as token ids: each pair as one input, or each text by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from batchwright.core.errors import RowError
from batchwright.core.pieces import Pieces
from batchwright.core.ports import Tokenizer
from batchwright.core.records import TextPair
from batchwright.tokens.fit import InputFitter, OverLength


class FittedPair(NamedTuple):
    """What the engine is asked for.

    Attributes:
        token_ids: of all pieces, one behind the other.
        pieces: where each begins.
        truncated: whether a text was cut.
        skipped: whether a document of a list has no piece.
    """

    token_ids: list[int]
    pieces: Pieces
    truncated: bool
    skipped: bool


class _Piece(NamedTuple):
    ids: list[int]
    second_at: int
    truncated: bool


class PairFitter:
    """Makes the texts of scoring rows fit the model.

    Args:
        tokenizer: of the model.
        limit: tokens that it reads at once, special ones included.
        over_length: what happens to a longer input; of a pair, only the document is ever cut.
        apart: whether each text is an input of its own, as for vectors.
    """

    def __init__(
        self, tokenizer: Tokenizer, limit: int, over_length: OverLength, *, apart: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._inputs = InputFitter(tokenizer, limit, over_length)
        self._ends = tokenizer.pair_ends
        self._limit = limit
        self._over_length = over_length
        self._apart = apart

    def fit(self, pairs: Sequence[TextPair]) -> list[FittedPair | RowError]:
        """One result per row, in order."""
        texts = [
            text for pair in pairs for text in (pair.query, *pair.documents) if text is not None
        ]
        if self._apart:
            encoded = iter(self._inputs.encode(texts))
        else:
            encoded = iter(self._tokenizer.encode(texts, add_special_tokens=False))
        found: list[FittedPair | RowError] = []
        for pair in pairs:
            query = next(encoded)
            documents = [None if text is None else next(encoded) for text in pair.documents]
            try:
                found.append(self._fit(query, documents, listed=pair.listed))
            except RowError as error:
                found.append(error)
        return found

    def _fit(
        self, query: list[int], documents: Iterable[list[int] | None], *, listed: bool
    ) -> FittedPair:
        pieces: list[_Piece | None] = []
        problem: RowError | None = None
        for ids in documents:
            try:
                pieces.append(None if ids is None else self._piece(query, ids))
            except RowError as error:
                problem = problem or error
                pieces.append(None)
        if problem is not None and not any(pieces):
            raise problem
        skipped = None in pieces
        if self._apart:  # a query that does not fit ends the row, whatever its documents are
            pieces.insert(0, self._alone(query))
        there = [piece or _Piece([], 0, truncated=False) for piece in pieces]
        return FittedPair(
            [token_id for piece in there for token_id in piece.ids],
            Pieces(
                tuple(len(piece.ids) for piece in there),
                tuple(piece.second_at for piece in there) if self._typed else (),
                listed,
            ),
            any(piece.truncated for piece in there),
            skipped,
        )

    @property
    def _typed(self) -> bool:
        return self._ends.typed and not self._apart

    def _piece(self, query: list[int], document: list[int]) -> _Piece:
        return self._alone(document) if self._apart else self._together(query, document)

    def _alone(self, ids: list[int]) -> _Piece:
        if not ids:
            raise RowError("empty_prompt", "a text has no tokens")
        fitted = self._inputs.fit(ids)
        return _Piece(fitted.token_ids, 0, fitted.truncated)

    def _together(self, query: list[int], document: list[int]) -> _Piece:
        if not query or not document:
            raise RowError("empty_prompt", "a text has no tokens")
        head, middle, tail, _ = self._ends
        room = self._limit - len(head) - len(query) - len(middle) - len(tail)
        kept = document
        if len(document) > room:
            kept = self._shortened(query, document, room)
        first = [*head, *query, *middle]
        return _Piece([*first, *kept, *tail], len(first), len(kept) < len(document))

    def _shortened(self, query: list[int], document: list[int], room: int) -> list[int]:
        if self._over_length == "reject" or room < 1:
            why = "" if room >= 1 else ", and the query alone leaves no room for it"
            raise RowError(
                "prompt_too_long",
                f"query and document have {len(query)} and {len(document)} tokens; the model "
                f"reads {self._limit} at most with its special ones{why}",
            )
        return document[-room:] if self._over_length == "truncate_left" else document[:room]
