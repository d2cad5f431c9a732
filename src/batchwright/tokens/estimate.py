"""Lengths of prompts for a model whose tokenizer is not here: four bytes count as a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from batchwright.core.ports import PairEnds
from batchwright.core.records import Prompt

BYTES_PER_TOKEN = 4

# Any id of a row's own may be right: the model decides.
VOCABULARY = 2**31 - 1


class EstimatingTokenizer:
    """Text in pieces of four bytes, each its own token id.

    Equal texts have equal ids, and texts that begin alike have ids that do: enough to count, to
    group and to find repeated prompts. The ids are never sent to anybody.
    """

    @property
    def vocab_size(self) -> int:
        """As many as an id can be."""
        return VOCABULARY

    @property
    def exact(self) -> bool:
        """False: every length is an estimate."""
        return False

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """None are known."""
        return ()

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """None are known."""
        return ()

    @property
    def special_ends(self) -> tuple[list[int], list[int]]:
        """None are known."""
        return [], []

    @property
    def pair_ends(self) -> PairEnds:
        """None are known."""
        return PairEnds([], [], [], typed=False)

    @property
    def has_chat_template(self) -> bool:
        """True: the endpoint has one."""
        return True

    def render_chat(self, prompt: Prompt) -> str:
        """The parts of a chat one after the other, about as long as what a template makes of them."""
        lines = [f"<|{turn['role']}|>\n{_as_text(turn)}\n" for turn in prompt.messages or []]
        if prompt.tools:
            lines.insert(0, orjson.dumps(prompt.tools).decode() + "\n")
        return "".join([*lines, "<|assistant|>\n"])

    def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:  # noqa: ARG002
        """Texts to the numbers that each four bytes are."""
        return [_pieces(text.encode("utf-8", "replace")) for text in texts]

    def decode(
        self,
        token_ids: Sequence[Sequence[int]],
        prompts: Sequence[Sequence[int]],  # noqa: ARG002
    ) -> list[str]:
        """The bytes again, as text; of a piece's last byte one bit is lost."""
        return [
            np.array(ids, "<u4").tobytes().rstrip(b"\0").decode("utf-8", "replace")
            for ids in token_ids
        ]

    def spell(self, token_ids: Sequence[int]) -> list[str]:
        """Each piece as a text of its own."""
        return self.decode([[one] for one in token_ids], [[]] * len(token_ids))


def _as_text(turn: dict[str, Any]) -> str:
    """All of a message but its role: content as it stands, the rest as JSON."""
    rest = {name: value for name, value in turn.items() if name not in ("role", "content")}
    content = turn.get("content")
    shown = content if isinstance(content, str) else orjson.dumps(content).decode()
    return shown if not rest else shown + orjson.dumps(rest).decode()


def _pieces(data: bytes) -> list[int]:
    padded = data + b"\0" * (-len(data) % BYTES_PER_TOKEN)
    # Ids are signed on disk: the highest bit of a piece has no place.
    ids: list[int] = (np.frombuffer(padded, "<u4") & 0x7FFFFFFF).tolist()
    return ids
