"""How long a context the model was made for."""

from __future__ import annotations

from batchwright.tokens.files import read_json, with_text_config

# The names that architectures use, the commonest first.
_NAMES = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "n_ctx")


def context_length(name: str, revision: str | None) -> int | None:
    """Tokens of prompt and answer that the model can hold; None if its config does not say.

    Raises:
        JobError: the config cannot be read.
    """
    for config in with_text_config([read_json(name, "config.json", revision)]):
        for field in _NAMES:
            value = config.get(field)
            if isinstance(value, int):
                return value
    return None
