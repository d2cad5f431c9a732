"""One token per byte: for dry runs without a model."""

from __future__ import annotations

from collections.abc import Sequence

from batchwright.core.ports import PairEnds
from batchwright.core.records import Prompt
from batchwright.tokens.chat import check_last_role
from batchwright.tokens.media import in_words

_PLACEHOLDERS = {"image": "<image>", "audio": "<audio>"}


class ByteTokenizer:
    """UTF-8 bytes as token ids. Lengths are estimates, about four times too long for English."""

    @property
    def vocab_size(self) -> int:
        """256."""
        return 256

    @property
    def exact(self) -> bool:
        """False: no model has this tokenizer."""
        return False

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """None."""
        return ()

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def special_ends(self) -> tuple[list[int], list[int]]:
        """None."""
        return [], []

    @property
    def pair_ends(self) -> PairEnds:
        """None."""
        return PairEnds([], [], [], typed=False)

    @property
    def has_chat_template(self) -> bool:
        """True, so that a dry run takes chat data."""
        return True

    def render_chat(self, prompt: Prompt) -> str:
        """One `role: content` line per message, and the header of the answer."""
        messages = prompt.messages or []
        check_last_role(prompt)
        shown = [in_words(message, _PLACEHOLDERS) for message in messages]
        lines = [f"{message['role']}: {message['content']}\n" for message in shown]
        kwargs = prompt.template_kwargs or {}
        if kwargs.get("add_generation_prompt") is False:
            return "".join(lines)
        if kwargs.get("continue_final_message"):
            return "".join(lines).removesuffix("\n")
        return "".join([*lines, "assistant:"])

    def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:  # noqa: ARG002
        """Texts to their bytes."""
        return [list(text.encode("utf-8", "replace")) for text in texts]

    def decode(
        self,
        token_ids: Sequence[Sequence[int]],
        prompts: Sequence[Sequence[int]],  # noqa: ARG002
    ) -> list[str]:
        """Bytes to texts; what is no UTF-8 becomes U+FFFD."""
        return [bytes(ids).decode("utf-8", "replace") for ids in token_ids]

    def spell(self, token_ids: Sequence[int]) -> list[str]:
        """Each byte as a text of its own."""
        return [bytes([token_id]).decode("utf-8", "replace") for token_id in token_ids]
