"""The job file: frozen models, one docstring and one bound per field, unknown keys refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from batchwright.core.sampling import PresetName, SamplingFields
from batchwright.core.tasks import ScoreMethod, TaskName, TaskSettings
from batchwright.core.vectors import EmbeddingSettings, VectorDtype

InputFormat = Literal["auto", "jsonl", "csv", "parquet", "json", "openai-batch"]
ResultFormat = Literal["parquet", "jsonl", "openai-batch", "vllm-batch"]


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
    role_fallback: Literal["reject", "merge"] = "reject"
    """What becomes of messages whose roles the model's chat template refuses: `merge` puts a system
    text ahead of the first user message, joins neighbours of one role, and marks the row with the
    warning `roles_merged`."""
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
    """An answer that does not keep to `structured_outputs` is asked for again so many times; then
    its row fails with `invalid_output`, its raw text kept."""


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


class Output(Section):
    """What the results look like."""

    path: str | None = None
    """Folder for the results; `results/` in the run directory unless given."""
    format: ResultFormat = "parquet"
    """Format of the results: `parquet`, `jsonl`; `openai-batch` for an output and an error file of
    response objects; `vllm-batch` for one file of them, as `vllm run-batch` writes it."""
    columns: Literal["all", "none"] | list[str] = "all"
    """Columns of the input that the results keep."""
    target_file_mb: Annotated[int, Field(ge=1, le=65536)] = 256
    """A results file is closed when it has about this size."""


class Engine(Section):
    """What makes the tokens."""

    kind: Literal["vllm", "torch", "openai", "fake"] = "vllm"
    """`vllm`; `torch` for `task: embed` by small encoders (BERT and its kin), which it runs faster;
    `openai` for endpoints that speak OpenAI's API (vLLM, SGLang, TGI, a provider); or `fake` for a
    dry run without a model."""
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
    """A row that has been in the engine for longer fails with `timeout`. Endpoints (`openai`) have
    `timeout_s` per request instead."""
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
    task: TaskName = "generate"
    """What is asked of the model: an answer (`generate`), one vector per row (`embed`), a label
    (`classify`), how well texts belong together (`score`), or how good a text is (`reward`)."""
    sampling: Sampling = Sampling()
    """How tokens are chosen."""
    embedding: Embedding = Embedding()
    """What the vectors of `task: embed` are like, and those that `task: score` compares."""
    scoring: Scoring = Scoring()
    """How `task: classify`, `score` and `reward` read a row, and what they tell of it."""
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

    def task_settings(self) -> TaskSettings:
        """What becomes of each row.

        Only of a job that went through the survey, which fills in what the model decides.
        """
        if self.task == "generate":
            return TaskSettings()
        if self.task == "embed":
            return TaskSettings("embed", self._vectors())
        method = self.scoring.method
        assert method != "auto", "the survey reads it from the model"
        return TaskSettings(
            self.task,
            self._vectors() if method == "vectors" else None,
            method,
            tuple(self.scoring.labels or ()),
            bool(self.scoring.raw),
        )

    def _vectors(self) -> EmbeddingSettings:
        wanted = self.embedding
        assert wanted.pooling != "auto", "the survey reads it from the model"
        assert wanted.dimensions is not None, "the survey reads it from the model"
        return EmbeddingSettings(wanted.pooling, wanted.dimensions, wanted.normalize, wanted.dtype)
