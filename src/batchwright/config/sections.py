"""The sections of the job file about rows: what they are, what is asked of the model, and how."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from batchwright.core.media import MEDIA_TYPES, MediaType
from batchwright.core.sampling import PresetName, SamplingFields
from batchwright.core.stores import Metric
from batchwright.core.tasks import ScoreMethod
from batchwright.core.vectors import VectorDtype

InputFormat = Literal["auto", "jsonl", "csv", "parquet", "json", "openai-batch"]


class Section(BaseModel):
    """Base of every section: frozen, and a key that is not known is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Input(Section):
    """Where the rows come from."""

    path: str | list[str]
    """File, folder, glob or a list of them, also on `s3://`, `gs://` and `az://`; `.gz` and `.zst` are
    recognised by content."""
    format: InputFormat = "auto"
    """By name and content unless given."""
    id: str = "auto"
    """Column that identifies a row; `row` for its number. `auto`: `custom_id` or `id` if the first
    row has it, else the row's number."""
    duplicate_ids: Literal["reject", "allow"] = "reject"
    """Whether later rows with an id that was seen before are rejected."""
    limit: Annotated[int | None, Field(ge=1)] = None
    """Only the first so many rows."""


class Example(Section):
    """One worked example for the prompt: the row's fields and the answer wanted."""

    fields: dict[str, Any]
    """Values for the template's variables."""
    answer: str
    """What the model should answer."""


class PromptSource(Section):
    """How a row becomes a prompt. With nothing given, each row has `messages` or `prompt`."""

    column: str | None = None
    """Column that holds the prompt."""
    messages: str | None = None
    """Column that holds a list of chat messages."""
    template: str | None = None
    """Jinja2 template over the row's columns; a missing column rejects the row."""
    system: str | None = None
    """Instruction ahead of every prompt: the system message, or the first paragraph."""
    examples: list[Example] = []
    """Worked examples ahead of every prompt, as chat turns or as text."""
    tools: list[dict[str, Any]] = []
    """Functions that the model may call, in OpenAI's form; a row's own `tools` take their place."""
    chat_template_kwargs: dict[str, Any] = {}
    """Values for the chat template, such as `enable_thinking: false`; a row's own column
    `chat_template_kwargs` is laid on top."""
    role_fallback: Literal["reject", "merge"] = "reject"
    """What becomes of messages whose roles the model's chat template refuses: `merge` puts a system
    text ahead of the first user message, joins neighbours of one role, and marks the row with the
    warning `roles_merged`."""
    images: str | None = None
    """Column that holds the row's image or a list of them: paths, URLs, bytes or base64. They stand
    at `image` parts of the messages that name no image themselves, else ahead of the text."""
    audio: str | None = None
    """The same for sounds."""
    chat: bool | None = None
    """Send a `column` or `template` prompt as a chat message. Unset: if the model has a chat
    template."""


class Model(Section):
    """Which model answers."""

    name: str = ""
    """Folder or hub id."""
    revision: str | None = None
    """Branch, tag or commit of the hub repository."""
    tokenizer: str | None = None
    """Folder or hub id of the tokenizer, if it is not the model's."""
    chat_template: str | None = None
    """A Jinja2 file that replaces the model's chat template, or the name of one of the model's own
    templates (`rag`, …) where it has several."""
    adapters: dict[Annotated[str, Field(min_length=1)], Annotated[str, Field(min_length=1)]] = {}
    """LoRA adapters by name: each is a folder or a hub id. A row's column `adapter` says which of
    them answers it; in rows that are requests themselves, and in batch lines, `model` does too."""
    adapter: str | None = None
    """The one of `adapters` for rows that name none; unset, the model itself."""
    dtype: str = "auto"
    """Weights' type, by vLLM's names."""
    reasoning_parser: str | None = None
    """Takes the model's thoughts out of the answer, into `reasoning`; by vLLM's names (`qwen3`,
    `deepseek_r1`, …)."""
    tool_call_parser: str | None = None
    """Takes tool calls out of the answer of a row with tools, into `tool_calls`; by vLLM's names
    (`hermes`, `llama3_json`, …)."""
    served_name: str | None = None
    """Name by which OpenAI batch lines call the model and response objects show it; its own name
    unless given."""
    trust_remote_code: bool = False
    """Let the model's own Python code run on this machine."""

    @model_validator(mode="after")
    def _adapters_are_known(self) -> Model:
        if self.adapter is not None and self.adapter not in self.adapters:
            known = ", ".join(sorted(self.adapters)) or "none"
            raise ValueError(f"adapter: {self.adapter} is not one of adapters (there are: {known})")
        if self.name and self.name in self.adapters:
            raise ValueError(f"adapters: {self.name} is the model's own name; give another")
        return self


class Sampling(SamplingFields):
    """How tokens are chosen: a preset, and any of vLLM's fields on top of it."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=False, use_attribute_docstrings=True
    )

    preset: PresetName = "deterministic"
    """deterministic, balanced, creative or code."""
    row_fields: Literal["auto", "none"] | list[str] = "auto"
    """Columns that override a field for their row. `auto`: every column named like a sampling
    field, in rows that carry `prompt` or `messages` themselves; none with a template or column."""
    schema_retries: Annotated[int, Field(ge=0, le=20)] = 2
    """An answer that does not keep to `structured_outputs` is asked for again so many times."""
    invalid_output: Literal["fail", "keep"] = "fail"
    """What becomes of a row whose answers never keep to `structured_outputs`: it fails with that
    code, its raw text kept; or it is ok all the same, with nothing in `parsed`."""


class Embedding(Section):
    """What the vectors of `task: embed` are like, and those that `task: score` compares."""

    dimensions: Annotated[int | None, Field(ge=1, le=65536)] = None
    """Only the first so many numbers of each vector, for models trained for that (Matryoshka).
    Unset: all that the model makes."""
    normalize: bool = True
    """Bring each vector to length 1, after it was cut to `dimensions`."""
    pooling: Literal["auto", "mean", "cls", "last"] = "auto"
    """How the tokens' vectors become one: their mean, the first token's or the last one's. `auto`:
    as the model's own `modules.json` says."""
    dtype: VectorDtype = "float32"
    """Type of the numbers in the results."""
    prompt: str | None = None
    """Text put ahead of each input, such as `query: ` or an instruction. Unset: the prompt that
    the model names as its default, if it does."""
    prompt_name: str | None = None
    """In place of `prompt`, one of the prompts in the model's own
    `config_sentence_transformers.json`, by its name (`query`, `document`, …)."""


class Scoring(Section):
    """How `task: classify`, `score` and `reward` read a row, and what they tell of it."""

    query: str = "query"
    """Column with the first text of `task: score`."""
    document: str = "document"
    """Column with the second."""
    documents: str = "documents"
    """Column with a list of texts, each of which is scored against the query."""
    query_prompt: str | None = None
    """Text put ahead of each query. Unset: with vectors, the model's own prompt `query`."""
    document_prompt: str | None = None
    """Text put ahead of each document. Unset: with vectors, the model's own prompt `document`,
    `passage` or `corpus`."""
    method: Literal["auto"] | ScoreMethod = "auto"
    """`head`: by a classification head; `vectors`: the cosine of two embeddings (`score`);
    `tokens`: a value per token, of which the last counts (`reward`); `steps`: a value per step
    (`reward`). `auto`: as the model's architecture says."""
    labels: list[str] | None = None
    """Names of what `task: classify` tells apart, in the order of the model's outputs. Unset: the
    model's `id2label`."""
    raw: bool | None = None
    """Scores as the model's head gives them, and not as probabilities. Unset: only for rewards,
    those of steps apart."""
    step_token: str | None = None
    """The token that ends each step of a process reward model, such as `<extra_0>`."""


class MediaSection(Section):
    """What images and sounds may be fetched for the rows, and what that may cost."""

    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 30
    """For one attempt at one image or sound; then its row fails with `media_timeout`."""
    max_bytes: Annotated[int, Field(ge=1, le=1 << 32)] = 20 << 20
    """Of one image or sound as it is stored."""
    max_pixels: Annotated[int, Field(ge=1)] = 50_000_000
    """Width times height of one image: a small file may hold a huge one."""
    max_seconds: Annotated[float, Field(gt=0)] = 3600
    """Length of one sound."""
    allowed_types: list[MediaType] = list(MEDIA_TYPES)
    """What the content itself must be, whatever its name or the server says."""
    allowed_roots: list[str] | None = None
    """Folders below which files may be read, links followed. Unset: those of the input files."""
    allow_private_addresses: bool = False
    """Fetch from this machine and from private networks too. Leave it off where others wrote the
    rows: they could read what only this machine can reach."""
    max_redirects: Annotated[int, Field(ge=0, le=20)] = 3
    """Followed for one image or sound; each step is checked like the first."""
    retries: Annotated[int, Field(ge=0, le=20)] = 2
    """More attempts after a failure that may pass: no connection, a busy server, a timeout."""
    workers: Annotated[int, Field(ge=1, le=256)] = 16
    """Images and sounds that one worker fetches at the same time."""


class LoadTarget(Section):
    """A table in a vector database: the run's vectors go there while later ones are made."""

    to: str
    """`postgresql://user@host/db?table=TABLE`, `qdrant://host:6333/COLLECTION`,
    `milvus://host:19530/COLLECTION` or `lance://folder/TABLE`; made if it does not exist. Secrets
    come from the environment: `PGPASSWORD`, `QDRANT_API_KEY`, `MILVUS_TOKEN`."""
    id: str = "auto"
    """Column of the input that rows are known by there. `auto`: the run's own ids."""
    columns: Literal["all", "none"] | list[str] = "all"
    """Columns of the input that travel with the vectors."""
    metric: Metric = "cosine"
    """By which neighbours are found: `cosine`, `l2` or `dot`."""
    index: bool = True
    """Build an index; without one, searches are exact and read all vectors."""
    batch_mb: Annotated[float | None, Field(gt=0, le=1024)] = None
    """Size of a request. Unset: 8, for LanceDB 16."""
    parallel: Annotated[int | None, Field(ge=1, le=64)] = None
    """Requests at a time. Unset: 4 for Qdrant, 2 for PostgreSQL and Milvus, 1 for what lies on this
    machine's disk."""
