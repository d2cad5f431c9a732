"""Look at the job, its input and its model once, before anything is started."""

from __future__ import annotations

import difflib
import platform
import re
from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa

import batchwright
from batchwright.config.job import Job
from batchwright.config.sections import Section
from batchwright.core.errors import InputError, JobError, RowError
from batchwright.core.ids import digest
from batchwright.core.ports import Tokenizer
from batchwright.core.records import SourceFile
from batchwright.core.schemas import JSON_INPUT
from batchwright.drafts.drafting import make_prompt_builder, make_row_sampling
from batchwright.drafts.inputs import make_pair_reader
from batchwright.equip.adapters import adapter_marks
from batchwright.equip.coherence import check_constraint, check_task
from batchwright.equip.equipment import job_tokenizer, with_step_token
from batchwright.read.files import list_files
from batchwright.read.rows import has_rows, input_type, peek
from batchwright.read.sniff import detect_format
from batchwright.read.splits import cut_splits
from batchwright.rundir.manifest import Manifest, encode_input_type
from batchwright.tokens.load import known_model, names_file, own_context, read_chat_template
from batchwright.tokens.pooling import input_length, resolve_embedding
from batchwright.tokens.scoring import resolve_scoring
from batchwright.validate.embedding_body import wanted_dimensions
from batchwright.validate.envelope import task_of
from batchwright.validate.media import ANYWHERE

# Rows looked at before the run: if none of them has the prompt's field, it is the job's fault.
ROWS_LOOKED_AT = 20

# Until the plan knows the data's lengths, a longer context would cost memory for nothing.
DEFAULT_MAX_MODEL_LEN = 8192

# Longer than any context.
NO_LIMIT = 1 << 30


def survey(job: Job) -> Manifest:
    """What the run will be, or the one error that says why it cannot be.

    Raises:
        JobError: the job file, the model folder or the prompt is wrong.
        InputError: there is no input, or it cannot be read.
    """
    assert job.engine.kind != "auto", "the engine is chosen where the job is made"
    check_task(job)
    files = list_files(job.input.path)
    input_format = detect_format(files, job.input.format)
    binary = [name for name in (job.prompt.images, job.prompt.audio) if name is not None]
    type_ = input_type(files, input_format, binary)
    first_rows = peek(files, input_format, type_, rows=ROWS_LOOKED_AT)
    splits = cut_splits(files, input_format)
    if not first_rows and not has_rows(files, input_format, type_):
        raise InputError(f"no rows in {job.input.path}", "Every file is empty or blank.")
    tokenizer = job_tokenizer(job)
    if job.task == "embed":
        job = resolve_embedding(job)
    elif job.task != "generate":
        job = resolve_scoring(job)
        with_step_token(job.task_settings(), job.scoring.step_token, tokenizer)

    make_row_sampling(job)
    check_constraint(job)
    chat = wants_chat(job, tokenizer)
    _check_prompt(job, first_rows, tokenizer, chat=chat, envelopes=input_format == "openai-batch")
    max_model_len = choose_max_model_len(job)
    return Manifest(
        job=job.model_dump(mode="json"),
        tools=_tools(),
        files=tuple(files),
        splits=tuple(splits),
        format=input_format,
        input_type=encode_input_type(type_),
        id_column=choose_id_column(job.input.id, input_format, first_rows),
        chat=chat,
        max_model_len=max_model_len,
        fingerprint=_fingerprint(job, files, input_format),
    )


def with_task_of_lines(job: Job) -> Job:
    """The job with the task that its OpenAI batch lines ask for, if it names none itself.

    The first line with an endpoint that is served decides; lines of the other task are rejected.
    """
    if "task" in job.model_fields_set or job.input.format not in ("auto", "openai-batch"):
        return job
    try:
        files = list_files(job.input.path)
        # The first file with content tells; the survey looks at all of them.
        told = next((file for file in files if file.size), None)
        if told is None or detect_format([told], job.input.format) != "openai-batch":
            return job
        lines = peek(files, "openai-batch", JSON_INPUT, rows=ROWS_LOOKED_AT)
    except InputError:
        return job  # the survey says what is wrong, with all that is known by then
    first = next((line for line in lines if task_of(line) is not None), None)
    if first is None or task_of(first) != "embed":
        return job
    embedding = job.embedding
    if embedding.dimensions is None:
        embedding = embedding.model_copy(update={"dimensions": wanted_dimensions(first)})
    return job.model_copy(update={"task": "embed", "embedding": embedding})


def wants_chat(job: Job, tokenizer: Tokenizer) -> bool:
    """Whether column and template prompts are sent as chat messages."""
    if job.task != "generate":
        return False
    asked = job.prompt.chat
    if (asked or job.prompt.messages) and not tokenizer.has_chat_template:
        raise JobError(
            f"the model {job.model.name} has no chat template",
            "Give one (model.chat_template: FILE), or use prompts that are plain text.",
        )
    if asked is not None:
        return asked
    return tokenizer.has_chat_template and (tokenizer.exact or job.engine.kind == "openai")


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
    scores = job.task != "generate" and known_model(job)
    own = input_length(job) if scores else own_context(job)
    asked = job.engine.options.get("max_model_len")
    if asked is None and job.engine.kind == "openai":
        return own or NO_LIMIT  # the endpoint's own, which it will tell
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
    if job.task == "score":
        _check_pairs(job, first_rows)
        return
    builder = make_prompt_builder(job, chat=chat)
    if envelopes or not first_rows:
        return
    if builder.is_constant and len(first_rows) > 1:
        _check_constant(job, first_rows)
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


def _check_constant(job: Job, first_rows: Sequence[dict[str, Any]]) -> None:
    """Refuse a template without a column where all answers would be the same: it costs a GPU.

    Many answers to one prompt are sampled with a temperature, or come of several adapters.
    """
    columns = sorted({name for row in first_rows for name in row})
    template = job.prompt.template or ""
    for name in columns:
        if re.search(rf"\{{\s*{re.escape(name)}\s*\}}", template):
            raise JobError(
                f"prompt.template names no column: {{{name}}} would be sent as it stands",
                f"Columns have two braces: {{{{ {name} }}}}. The template is Jinja2.",
            )
    sampling = orjson.loads(make_row_sampling(job).resolve({})[0])
    by_row = isinstance(job.sampling.row_fields, list) or job.model.adapters
    if sampling.get("temperature") == 0 and not by_row:
        raise JobError(
            "prompt.template names no column: every row would ask the same and, with temperature "
            "0, be answered the same",
            f"The rows have: {', '.join(columns)}. Write {{{{ {columns[0]} }}}} where one belongs; for "
            "many answers to one prompt set sampling.temperature.",
        )


def _check_pairs(job: Job, first_rows: Sequence[dict[str, Any]]) -> None:
    """The same of the columns of a scoring task."""
    reader = make_pair_reader(job)
    problems = []
    for row in first_rows:
        try:
            reader.read(row)
        except RowError as problem:
            problems.append(problem)
        else:
            return
    if problems and all(problem.code == "missing_field" for problem in problems):
        names = sorted({name for row in first_rows for name in row})
        raise JobError(
            f"scoring: {problems[0].message} (so in each of the first {len(problems)} rows)",
            f"The rows have: {', '.join(names)}. Set scoring.query, and scoring.document or "
            "scoring.documents.",
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
            "chat_template": _template_mark(template) if template else None,
            # Runs that were begun by an earlier version have no such key.
            **(
                {"adapters": adapter_marks(job.model), "adapter": job.model.adapter}
                if job.model.adapters
                else {}
            ),
        },
        "sampling": job.sampling.model_dump(mode="json", exclude_none=True),
        "task": job.task,
        "embedding": _section(job.embedding, shown=job.task in ("embed", "score")),
        "scoring": _section(job.scoring, shown=job.task in ("classify", "score", "reward")),
        "plan": {
            "over_length": job.plan.over_length,
            # Unless asked for it is what the first start chose, and stays so.
            "max_model_len": job.engine.options.get("max_model_len"),
        },
        "engine": {"kind": job.engine.kind},
    }


def _section(section: Section, *, shown: bool) -> dict[str, Any] | None:
    return section.model_dump(mode="json") if shown else None


def _template_mark(template: str) -> str:
    """The content of a file, or the name of one of the model's own templates."""
    return digest(read_chat_template(template)) if names_file(template) else template


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
