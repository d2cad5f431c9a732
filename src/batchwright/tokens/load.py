"""The tokenizer that a job's model section asks for."""

from __future__ import annotations

from pathlib import Path

from batchwright.config.job import Job
from batchwright.core.errors import JobError
from batchwright.core.ports import Tokenizer
from batchwright.tokens.byte_level import ByteTokenizer
from batchwright.tokens.context import context_length
from batchwright.tokens.estimate import EstimatingTokenizer
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


def known_model(job: Job) -> str:
    """Where the model's own files are: a folder or hub id; empty if only an endpoint has them.

    The name that an endpoint knows says nothing of the hub: only a folder is taken for the model.
    """
    name = job.model.name
    return name if job.engine.kind != "openai" or Path(name).is_dir() else ""


def own_context(job: Job) -> int | None:
    """Tokens of prompt and answer that the job's model can hold; None if nothing here says it."""
    name = known_model(job)
    return context_length(name, job.model.revision) if name else None


def endpoint_tokenizer(job: Job) -> Tokenizer:
    """The tokenizer of a model behind an endpoint, if its files are here; else an estimate."""
    name = job.model.tokenizer or known_model(job)
    if not name:
        return EstimatingTokenizer()
    return HfTokenizer.load(name, trust_remote_code=job.model.trust_remote_code)


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
