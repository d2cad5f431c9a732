"""The job file: frozen models, one docstring and one bound per field, unknown keys refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from batchwright.core.media import MEDIA_TYPES, MediaLimits, MediaType
from batchwright.core.sampling import PresetName, SamplingFields
from batchwright.core.vectors import EmbeddingSettings, VectorDtype

InputFormat = Literal["auto", "jsonl", "csv", "parquet", "json", "openai-batch"]


class Section(BaseModel):
    """Base of every section: frozen, and a key that is not known is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Input(Section):
    """Where the rows come from."""

    path: str | list[str]
    """File, folder, glob or a list of them; `.gz` and `.zst` are recognised by content."""
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
    """Path of a Jinja2 file that replaces the model's chat template."""
    dtype: str = "auto"
    """Weights' type, by vLLM's names."""
    reasoning_parser: str | None = None
    """Takes the model's thoughts out of the answer, into `reasoning`; by vLLM's names (`qwen3`,
    `deepseek_r1`, …)."""
    tool_call_parser: str | None = None
    """Takes tool calls out of the answer of a row with tools, into `tool_calls`; by vLLM's names
    (`hermes`, `llama3_json`, …)."""
    trust_remote_code: bool = False
    """Let the model's own Python code run on this machine."""


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
    """An answer that does not keep to `structured_outputs` is asked for again so many times; then
    its row fails with `invalid_output`, its raw text kept."""


class Embedding(Section):
    """What the vectors of `task: embed` are like."""

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
    """Text put ahead of each input, such as `query: ` or an instruction."""


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


class Output(Section):
    """What the results look like."""

    path: str | None = None
    """Folder for the results; `results/` in the run directory unless given."""
    format: Literal["parquet", "jsonl"] = "parquet"
    """Format of the results."""
    columns: Literal["all", "none"] | list[str] = "all"
    """Columns of the input that the results keep."""
    target_file_mb: Annotated[int, Field(ge=1, le=65536)] = 256
    """A results file is closed when it has about this size."""


class Engine(Section):
    """What makes the tokens."""

    kind: Literal["vllm", "torch", "fake"] = "vllm"
    """`vllm`; `torch` for embeddings by small encoders (BERT and its kin), which it runs faster; or
    `fake` for a dry run without a model."""
    options: dict[str, Any] = {}
    """Passed to the engine by its own names (`max_model_len`, `gpu_memory_utilization`, …)."""
    start_timeout_s: Annotated[float, Field(gt=0)] = 1800
    """An engine that is not up by then is taken for dead."""
    hang_timeout_s: Annotated[float, Field(gt=0)] = 600
    """An engine that makes no step for so long is taken for dead."""


class Hardware(Section):
    """The cards that the job is planned for; this machine's own unless named."""

    gpu: str | None = None
    """Kind of card: L4, T4, A10G, RTX4090, L40S, A100-40, A100-80, H100, H200, B200, MI300X."""
    count: Annotated[int, Field(ge=1, le=4096)] = 1
    """How many of them."""


class Plan(Section):
    """Limits that the plan must keep, and what it counts with."""

    usd_per_gpu_hour: Annotated[float | None, Field(gt=0)] = None
    """Price of one card, for the cost of the job."""

    max_hours: Annotated[float | None, Field(gt=0)] = None
    """A run pilots first, and ends there (exit 2) if it would take longer by its estimate."""
    max_usd: Annotated[float | None, Field(gt=0)] = None
    """The same for its cost; needs `usd_per_gpu_hour`."""
    over_length: Literal["reject", "truncate_left", "truncate_right"] = "reject"
    """What happens to a prompt that leaves no room for an answer of one token (or `min_tokens`);
    one that leaves some is never cut. Truncation is marked in the output."""

    @model_validator(mode="after")
    def _a_budget_in_dollars_has_a_price(self) -> Plan:
        """Found out now, and not when the pilot has been paid for."""
        if self.max_usd is not None and self.usd_per_gpu_hour is None:
            raise ValueError("max_usd needs a price: set plan.usd_per_gpu_hour")
        return self


class Run(Section):
    """How the work is cut, spread and judged."""

    executor: Literal["local"] = "local"
    """Where workers live."""
    replicas: Annotated[int | None, Field(ge=1, le=1024)] = None
    """Engines that run at the same time. Unset: as many as the plan has room for on this machine's
    cards; one without a card."""
    engines_per_gpu: Annotated[int | None, Field(ge=1, le=16)] = None
    """Engines that share each card; its memory is divided among them. Unset: more than one where
    the plan finds that the host is the bottleneck, each kept only if it brings 5 %."""
    prepare_processes: Annotated[int, Field(ge=1, le=256)] = 1
    """Processes that read, check and tokenise."""
    pilot_rows: Annotated[int, Field(ge=0, le=1_000_000)] = 1000
    """Rows of a pilot, chosen over all prompt lengths. A run of at least four times as many begins
    with them and then tells its hours; 0 for none."""
    order: Literal["auto", "file", "prefix", "length"] = "auto"
    """In which order rows run: as in the input, grouped by shared prefix, or by prompt length.
    `auto`: grouped where that saves time by the plan's arithmetic. The results are in input order
    either way."""
    repeat_once: bool = False
    """Compute rows with the same prompt and the same greedy sampling once, and copy the answer."""
    chunk_rows: Annotated[int | None, Field(ge=1, le=1_000_000)] = None
    """Rows per chunk. Unset: from 256 at the start to 8,192 in large jobs."""
    max_failed: Annotated[float, Field(ge=0, le=1)] = 0.01
    """A finished run with a larger share of failed and rejected rows exits with 4."""
    stop_at_failed: Annotated[float, Field(ge=0, le=1)] = 0.5
    """After 100 rows, a larger share of failed and rejected rows stops the run (exit 3)."""
    row_timeout_s: Annotated[float, Field(gt=0)] = 3600
    """A row that has been in the engine for longer fails with `timeout`."""
    lease_s: Annotated[float, Field(ge=1)] = 60
    """A worker that gives no sign of life for so long loses its claims."""
    grace_s: Annotated[float, Field(ge=0)] = 20
    """After SIGTERM or Ctrl-C, time for the rows in flight to finish."""
    dir: str = "runs/{name}"
    """The run directory: a folder; `{name}` is the job's name."""


class Job(Section):
    """A whole job: input, prompt, model, sampling, engine, run, output."""

    name: str = "job"
    """Used in the run directory's name; the job file's own name unless given."""
    input: Input
    """Where the rows come from."""
    prompt: PromptSource = PromptSource()
    """How a row becomes a prompt."""
    model: Model = Model()
    """Which model answers."""
    task: Literal["generate", "embed"] = "generate"
    """What is asked of the model: an answer, or one vector per row."""
    sampling: Sampling = Sampling()
    """How tokens are chosen."""
    embedding: Embedding = Embedding()
    """What the vectors of `task: embed` are like."""
    media: MediaSection = MediaSection()
    """What images and sounds may be fetched for the rows, and what that may cost."""
    output: Output = Output()
    """What the results look like."""
    engine: Engine = Engine()
    """What makes the tokens."""
    hardware: Hardware = Hardware()
    """The cards that the job is planned for."""
    plan: Plan = Plan()
    """Limits that the plan must keep, and what it counts with."""
    run: Run = Run()
    """How the work is cut, spread and judged."""

    def embedding_settings(self) -> EmbeddingSettings | None:
        """The vectors that this job makes; None if it makes text.

        Only of a job that went through the survey, which fills in what the model decides.
        """
        wanted = self.embedding
        if self.task != "embed":
            return None
        assert wanted.pooling != "auto", "the survey reads it from the model"
        assert wanted.dimensions is not None, "the survey reads it from the model"
        return EmbeddingSettings(wanted.pooling, wanted.dimensions, wanted.normalize, wanted.dtype)

    def media_limits(self, roots: Iterable[str]) -> MediaLimits:
        """The limits of the section `media`; `roots` stand for folders that it does not name."""
        given = self.media.model_dump(exclude={"allowed_types", "allowed_roots"})
        named = self.media.allowed_roots
        return MediaLimits(
            **given,
            allowed_types=frozenset(self.media.allowed_types),
            allowed_roots=tuple(dict.fromkeys(roots if named is None else named)),
        )
