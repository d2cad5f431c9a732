"""Text of an exact number of tokens: made from words that are one token each, wherever they stand."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.throughput.records import Row

# A token that is a whole word: GPT-2's and SentencePiece's marks for a space, or WordPiece's none.
_WORD = re.compile(r"^[Ġ▁]?([a-z]{2,12})$")
MAX_WORDS = 20_000
BATCH = 2048


class Words:
    """A model's words of one token, and texts made of them.

    Args:
        model: folder with tokenizer.json.

    Attributes:
        special: tokens that the tokenizer adds around every text, such as BOS.
    """

    def __init__(self, model: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer: Any = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.special = len(self._tokenizer.encode("").ids)
        self.words = self._stable_words()

    def _stable_words(self) -> list[str]:
        found = {match[1] for token in self._tokenizer.get_vocab() if (match := _WORD.match(token))}
        candidates = sorted(found)
        # Twice in a row: a word that melts into its neighbour is of no use.
        texts = [f" {word} {word}" for word in candidates]
        encoded = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        stable = [
            word
            for word, one in zip(candidates, encoded, strict=True)
            if len(one.ids) == 2 and one.ids[0] == one.ids[1]
        ]
        random.Random(0).shuffle(stable)
        if len(stable) < 100:
            raise ValueError(f"only {len(stable)} words of one token in this vocabulary")
        return stable[:MAX_WORDS]

    def text(self, key: int, tokens: int, seed: int) -> str:
        """The same text for the same key; each word with a space before it."""
        rng = random.Random(f"{seed}/{key}")
        return " " + " ".join(rng.choices(self.words, k=tokens)) if tokens else ""

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, with those that the tokenizer adds."""
        return [len(ids) for ids in self.token_ids(texts)]

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text as a system sees them, with those that the tokenizer adds."""
        return [one.ids for one in self._tokenizer.encode_batch(list(texts))]

    def prompts(self, rows: Iterable[Row], seed: int) -> Iterable[tuple[Row, str]]:
        """Rows with their text, each of exactly the wanted length.

        Raises:
            ValueError: a text has another number of tokens than it should.
        """
        batch: list[tuple[Row, str]] = []
        shared: dict[int, str] = {}
        for row in rows:
            batch.append((row, self._prompt(row, seed, shared)))
            if len(batch) == BATCH:
                yield from self._checked(batch)
                batch = []
        yield from self._checked(batch)

    def _prompt(self, row: Row, seed: int, shared: dict[int, str]) -> str:
        """The pieces in a row; the tokens that the tokenizer adds are taken off the last one."""
        *leading, last = row.segments
        parts = []
        for segment in leading:
            if segment.key not in shared:
                shared[segment.key] = self.text(segment.key, segment.tokens, seed)
            parts.append(shared[segment.key])
        parts.append(self.text(last.key, last.tokens - self.special, seed))
        return "".join(parts)

    def _checked(self, batch: list[tuple[Row, str]]) -> list[tuple[Row, str]]:
        lengths = self.lengths([text for _, text in batch])
        for (row, _), length in zip(batch, lengths, strict=True):
            if length != row.prompt_tokens:
                raise ValueError(
                    f"{row.id} has {length} tokens and should have {row.prompt_tokens}"
                )
        return batch
