"""The token that ends a model's answers as a rule, found without loading its tokenizer."""

from __future__ import annotations

from typing import Any

from batchwright.core.errors import JobError
from batchwright.tokens import files


def main_end_token(name: str, revision: str | None) -> int | None:
    """Id of the tokenizer's own end token; None where the files beside the model do not tell.

    The generation config may name further ones.
    """
    if not name:
        return None
    try:
        config = files.read_json(name, "tokenizer_config.json", revision)
        tokenizer = files.read_json(name, "tokenizer.json", revision)
    except JobError:  # a single-file model, or one that is gone by now: the results do not need it
        return None
    spelling = _spelling(config.get("eos_token"))
    if spelling is None:
        return None
    for token_id, token in (config.get("added_tokens_decoder") or {}).items():
        if _spelling(token) == spelling:
            return int(token_id)
    for token in tokenizer.get("added_tokens") or []:
        if _spelling(token) == spelling:
            return int(token["id"])
    vocabulary = (tokenizer.get("model") or {}).get("vocab")
    found = vocabulary.get(spelling) if isinstance(vocabulary, dict) else None
    return found if isinstance(found, int) else None


def _spelling(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
