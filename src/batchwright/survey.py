"""Look at the job, its input and its model once, before anything is started."""

from __future__ import annotations

import difflib
import platform
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import batchwright
from batchwright.config.job import Embedding, Job, Sampling
from batchwright.core.errors import InputError, JobError, RowError
from batchwright.core.ids import digest
from batchwright.core.ports import Tokenizer
from batchwright.core.records import SourceFile
from batchwright.engines.vllm_setup import check_model
from batchwright.prepare import make_prompt_builder, make_row_sampling
from batchwright.read.files import list_files
from batchwright.read.rows import has_rows, input_type, peek
from batchwright.read.sniff import detect_format
from batchwright.read.splits import cut_splits
from batchwright.roles import job_tokenizer
from batchwright.rundir.manifest import Manifest, encode_input_type
from batchwright.tokens.context import context_length
from batchwright.tokens.load import read_chat_template
from batchwright.tokens.pooling import input_length, resolve_embedding
from batchwright.validate.media import ANYWHERE

# Rows looked at before the run: if none of them has the prompt's field, it is the job's fault.
ROWS_LOOKED_AT = 20

# Until the plan knows the data's lengths, a longer context would cost memory for nothing.
DEFAULT_MAX_MODEL_LEN = 8192


def survey(job: Job) -> Manifest:
    """What the run will be, or the one error that says why it cannot be.

    Raises:
        JobError: the job file, the model folder or the prompt is wrong.
        InputError: there is no input, or it cannot be read.
    """
    check_task(job)
    files = list_files(job.input.path)
    input_format = detect_format(files, job.input.format)
    binary = [name for name in (job.prompt.images, job.prompt.audio) if name is not None]
    first_rows = peek(files, input_format, rows=ROWS_LOOKED_AT, binary=binary)
    splits = cut_splits(files, input_format)
    if not first_rows and not has_rows(files, input_format, binary):
        raise InputError(f"no rows in {job.input.path}", "Every file is empty or blank.")
    tokenizer = job_tokenizer(job)
    if job.task == "embed":
        job = resolve_embedding(job)

    make_row_sampling(job)
    chat = wants_chat(job, tokenizer)
    _check_prompt(job, first_rows, tokenizer, chat=chat, envelopes=input_format == "openai-batch")
    max_model_len = choose_max_model_len(job)
    return Manifest(
        job=job.model_dump(mode="json"),
        tools=_tools(),
        files=tuple(files),
        splits=tuple(splits),
        format=input_format,
        input_type=encode_input_type(input_type(files, input_format, binary)),
        id_column=choose_id_column(job.input.id, input_format, first_rows),
        chat=chat,
        max_model_len=max_model_len,
        fingerprint=_fingerprint(job, files, input_format),
    )


def check_engine(job: Job) -> None:
    """What can be said of the engine before it is started. Raises JobError."""
    if job.engine.kind == "fake":
        return
    if not job.model.name:
        raise JobError(
            "no model is given", "Name one: --model NAME, or model.name in the job file."
        )
    check_model(job.model.name, job.engine.options)


def check_task(job: Job) -> None:
    """Refuse settings that the task has no use for: they would be dropped in silence."""
    embeds = job.task == "embed"
    if job.engine.kind == "torch" and not embeds:
        raise JobError(
            "the torch engine makes embeddings only", "Set task: embed, or use engine.kind: vllm."
        )
    if not embeds:
        if job.embedding != Embedding():
            raise JobError("the section embedding is for task: embed", "Set task, or remove it.")
        return
    if job.plan.max_hours is not None or job.plan.max_usd is not None:
        raise JobError(
            "plan.max_hours and max_usd need a pilot, and there is none for task: embed yet",
            "Remove them; `batchwright status` shows the rate while the job runs.",
        )
    if job.sampling != Sampling():
        raise JobError(
            "task: embed samples nothing", "Remove the section sampling, --max-tokens too."
        )
    source = job.prompt
    if source.images or source.audio:
        raise JobError("task: embed reads text: prompt.images and prompt.audio are for answers")
    if source.messages or source.system or source.examples or source.chat:
        raise JobError(
            "task: embed reads plain text: prompt.messages, system, examples and chat are for "
            "generated answers",
            "An instruction ahead of each input goes into embedding.prompt.",
        )


def wants_chat(job: Job, tokenizer: Tokenizer) -> bool:
    """Whether column and template prompts are sent as chat messages."""
    if job.task == "embed":
        return False
    asked = job.prompt.chat
    if (asked or job.prompt.messages) and not tokenizer.has_chat_template:
        raise JobError(
            f"the model {job.model.name} has no chat template",
            "Give one (model.chat_template: FILE), or use prompts that are plain text.",
        )
    if asked is not None:
        return asked
    return tokenizer.has_chat_template and tokenizer.exact


def choose_id_column(asked: str, input_format: str, first_rows: Sequence[dict[str, Any]]) -> str:
    """The column that identifies a row; empty when its number does."""
    if input_format == "openai-batch":
        return "custom_id"
    if asked == "row":
        return ""
    if asked == "auto":
        # One stray id further down must not reject every row that has none.
        first = first_rows[0] if first_rows else {}
        return next((name for name in ("custom_id", "id") if first.get(name) is not None), "")
    names = {name for row in first_rows for name in row}
    if names and asked not in names:
        raise JobError(f"input.id: no row has a column {asked}{_nearest(asked, names)}")
    return asked


def choose_max_model_len(job: Job) -> int:
    """Prompt and output tokens of one row at most."""
    if job.task == "embed":
        own = input_length(job)
    else:
        own = context_length(job.model.name, job.model.revision) if job.model.name else None
    asked = job.engine.options.get("max_model_len")
    if asked is None:
        return min(own or DEFAULT_MAX_MODEL_LEN, DEFAULT_MAX_MODEL_LEN)
    if not isinstance(asked, int) or isinstance(asked, bool) or asked < 2:
        raise JobError(f"engine.options.max_model_len: a number of tokens (got {asked!r})")
    if own is not None and asked > own:
        raise JobError(
            f"engine.options.max_model_len is {asked}, but the model's own context is {own} tokens"
        )
    return asked


def _check_prompt(
    job: Job,
    first_rows: Sequence[dict[str, Any]],
    tokenizer: Tokenizer,
    *,
    chat: bool,
    envelopes: bool,
) -> None:
    """If not one of the first rows has what the prompt needs, the job is wrong, not the rows."""
    builder = make_prompt_builder(job, chat=chat)
    if envelopes or not first_rows:
        return
    problems = []
    for row in first_rows:
        try:
            prompt = builder.build(row, ANYWHERE)
            if prompt.messages is None or tokenizer.has_chat_template:
                return
            problems.append(RowError("no_chat_template", "the rows hold messages, but the model "
                                     f"{job.model.name} has no chat template"))  # fmt: skip
        except RowError as problem:
            problems.append(problem)
    if all(problem.code in {"missing_field", "no_chat_template", "missing_prompt"}
           for problem in problems):  # fmt: skip
        names = sorted({name for row in first_rows for name in row})
        raise JobError(
            f"prompt: {problems[0].message} (so in each of the first {len(problems)} rows)",
            f"The rows have: {', '.join(names)}. Set prompt.column, prompt.messages or "
            "prompt.template (--prompt).",
        )


def _fingerprint(job: Job, files: Sequence[SourceFile], input_format: str) -> dict[str, Any]:
    """What may not change between two starts of a run."""
    template = job.model.chat_template
    return {
        "input": {
            "files": {file.path: f"{file.size} bytes, {file.identity}" for file in files},
            "format": input_format,
            **job.input.model_dump(mode="json", include={"id", "duplicate_ids", "limit"}),
        },
        "prompt": job.prompt.model_dump(mode="json"),
        "model": {
            **job.model.model_dump(mode="json", include={"name", "revision", "tokenizer"}),
            "chat_template": digest(read_chat_template(template)) if template else None,
        },
        "sampling": job.sampling.model_dump(mode="json", exclude_none=True),
        "task": job.task,
        "embedding": job.embedding.model_dump(mode="json") if job.task == "embed" else None,
        "plan": {
            "over_length": job.plan.over_length,
            # Unless asked for it is what the first start chose, and stays so.
            "max_model_len": job.engine.options.get("max_model_len"),
        },
        "engine": {"kind": job.engine.kind},
    }


def _tools() -> dict[str, str]:
    return {
        "batchwright": batchwright.__version__,
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
    }


def _nearest(name: str, names: set[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there are: {', '.join(sorted(names))}"
