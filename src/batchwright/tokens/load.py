"""The tokenizer that a job's model section asks for."""

from __future__ import annotations

from pathlib import Path

from batchwright.core.errors import JobError
from batchwright.core.ports import Tokenizer
from batchwright.tokens.byte_level import ByteTokenizer
from batchwright.tokens.hf import HfTokenizer


def load_tokenizer(
    *,
    name: str,
    tokenizer: str | None,
    revision: str | None,
    trust_remote_code: bool,
    chat_template_path: str | None,
) -> Tokenizer:
    """The model's tokenizer, or bytes when no model is named. Raises JobError.

    `revision` is the model's; a tokenizer from elsewhere is taken at its newest.
    """
    if not name and not tokenizer:
        return ByteTokenizer()
    chat_template = template_name = None
    if chat_template_path is not None and names_file(chat_template_path):
        chat_template = read_chat_template(chat_template_path)
    elif chat_template_path is not None:
        template_name = chat_template_path
    if not tokenizer or tokenizer == name:
        return HfTokenizer.load(
            name,
            revision=revision,
            trust_remote_code=trust_remote_code,
            chat_template=chat_template,
            template_name=template_name,
        )
    return HfTokenizer.load(
        tokenizer,
        trust_remote_code=trust_remote_code,
        chat_template=chat_template,
        template_name=template_name,
        model=name or None,
        model_revision=revision,
    )


def read_chat_template(path: str) -> str:
    """The text of `model.chat_template`. Raises JobError."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise JobError(
            f"model.chat_template: {path} cannot be read: {error}", "Give a Jinja2 file."
        ) from None


def names_file(template: str) -> bool:
    """Whether `model.chat_template` is a path; else it is the name of one of the model's own."""
    return bool(set("./~\\") & set(template)) or Path(template).is_file()
