"""Notes on rows that run all the same: special tokens in the text, prompts without content."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from batchwright.core.records import Prompt

# Zero-width and other invisible characters, which str.isspace does not know.
_VISIBLE = re.compile(r"[^\s\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f"
                      r"\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0]")  # fmt: skip


def special_token_finder(special_tokens: Sequence[str]) -> Callable[[str], str | None]:
    """A test for texts: the first spelling of a special token in them, or None."""
    spellings = sorted({token for token in special_tokens if token}, key=len, reverse=True)
    if not spellings:
        return _nothing
    search = re.compile("|".join(map(re.escape, spellings))).search

    def find(text: str) -> str | None:
        found = search(text)
        return found[0] if found else None

    return find


def is_blank(prompt: Prompt) -> bool:
    """Whether the text, or the last message of the user, has nothing that can be seen."""
    if prompt.text is not None:
        return not _VISIBLE.search(prompt.text)
    for message in reversed(prompt.messages or ()):
        if message["role"] == "user":
            # An image without a word is a whole question to some models.
            return isinstance(message["content"], str) and not _VISIBLE.search(message["content"])
    return False


def _nothing(text: str) -> str | None:  # noqa: ARG001  (stands in for a finder)
    return None
