"""The job file: frozen models, one docstring and one bound per field, unknown keys refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from batchwright.config.cluster import RayCluster
from batchwright.config.kubernetes import Kubernetes
from batchwright.config.sections import (
    Embedding,
    Input,
    LoadTarget,
    MediaSection,
    Model,
    PromptSource,
    Sampling,
    Scoring,
    Section,
)
from batchwright.core.log_levels import DEFAULT_LEVEL, parse_levels
from batchwright.core.media import MediaLimits
from batchwright.core.tasks import TaskName, TaskSettings
from batchwright.core.vectors import EmbeddingSettings

ResultFormat = Literal["parquet", "jsonl", "csv", "delta", "lance", "openai-batch", "vllm-batch"]

# What each format can be compressed with; `auto` is the first.
COMPRESSIONS: dict[str, tuple[str, ...]] = {
    "parquet": ("zstd", "snappy", "gzip", "lz4", "none"),
    "delta": ("zstd", "snappy", "gzip", "lz4"),
    "jsonl": ("none", "gzip", "zstd"),
    "csv": ("none", "gzip", "zstd"),
}


class Output(Section):
    """What the results look like."""

    path: str | None = None
    """Folder for the results, or `s3://bucket/folder`; `results/` in the run directory unless given."""
    format: ResultFormat = "parquet"
    """Format of the results: `parquet`, `jsonl`, `csv`; `delta` for a Delta table and `lance` for a
    Lance dataset; `openai-batch` for an output and an error file of response objects; `vllm-batch`
    for one file of them, as `vllm run-batch` writes it."""
    columns: Literal["all", "none"] | list[str] = "all"
    """Columns of the input that the results keep."""
    target_file_mb: Annotated[int, Field(ge=1, le=65536)] = 256
    """A results file is closed when it has about this size."""
    compression: Literal["auto", "none", "zstd", "gzip", "snappy", "lz4"] = "auto"
    """`auto` is zstd in Parquet and Delta, none elsewhere. JSONL and CSV can have gzip or zstd."""
    row_group_mb: Annotated[int, Field(ge=1, le=1024)] = 32
    """Content of a row group of Parquet, before compression; it has 2,048 rows per MB at most."""
    order: Literal["input", "any"] = "input"
    """`any` leaves rows as they lie in the parts: nothing is sorted, which saves time and disk where
    rows ran in another order. The same rows may then give other files."""
    partition_by: list[str] = Field(default=[])
    """Columns of the results whose values name folders (`label=good/`), as Hive has them; 500 folders
    at most. Parquet and Delta only."""

    @property
    def codec(self) -> str:
        """The compression by name; empty where there is none to choose."""
        chosen = COMPRESSIONS.get(self.format, ("",))[0]
        return chosen if self.compression == "auto" else self.compression

    @model_validator(mode="after")
    def _options_suit_the_format(self) -> Output:
        """Found out now, and not when the rows are computed."""
        known = COMPRESSIONS.get(self.format, ())
        if self.compression != "auto" and self.compression not in known:
            there = f"{self.format} has {', '.join(known) or 'none'}"
            raise ValueError(f"compression: {self.compression}: {there}")
        if self.partition_by and self.format not in ("parquet", "delta"):
            raise ValueError(f"partition_by: there are no partitions in {self.format}")
        return self


class Engine(Section):
    """What makes the tokens."""

    kind: Literal["auto", "vllm", "torch", "openai", "fake"] = "auto"
    """`vllm`; `torch` for `task: embed` by small encoders, which it runs faster; `openai` for
    endpoints that speak OpenAI's API (vLLM, SGLang, TGI, a provider); or `fake` for a dry run
    without a model. `auto` is `torch` where the task is `embed`, the model is BERT, RoBERTa, XLM-R or
    CamemBERT, there is a GPU, and nothing asks for what only vLLM has; else `vllm`. A run keeps what
    it began with."""
    options: dict[str, Any] = Field(default={})
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

    executor: Literal["local", "ray"] = "local"
    """Where workers live: processes of this machine (`local`), or actors of a Ray cluster (`ray`)."""
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
    order: Literal["auto", "file", "prefix", "length", "longest"] = "auto"
    """In which order rows run: as in the input, grouped by shared prefix, by prompt length, or those
    with the largest `max_tokens` first (`longest`). `auto`: grouped by prefix where that saves time
    by the plan's arithmetic, else as in the input. The results are in input order either way."""
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
    log_level: str = DEFAULT_LEVEL
    """How much the workers log: `debug`, `info`, `warning` or `error`, and others for single stages
    (`info,engine=debug`); there are `run`, `prepare`, `order`, `engine` and `write`. The variable
    `BATCHWRIGHT_LOG` of the environment beats it."""
    dir: str = "runs/{name}"
    """The run directory: a folder, or `s3://bucket/folder`; `{name}` is the job's name."""
    metrics_port: Annotated[int | None, Field(ge=1, le=65535)] = None
    """Port on which the process that drives the run, or a worker without a leader, shows metrics for
    Prometheus under `/metrics`. Unset: none."""
    ray: RayCluster = RayCluster()
    """The Ray cluster of `executor: ray`, and what each process of the run gets of it."""

    @field_validator("log_level")
    @classmethod
    def _log_level_is_known(cls, text: str) -> str:
        parse_levels(text)
        return text


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
    media: MediaSection = MediaSection()
    """What images and sounds may be fetched for the rows, and what that may cost."""
    output: Output = Output()
    """What the results look like."""
    load: list[LoadTarget] = Field(default=[])
    """Tables in vector databases that the vectors of `task: embed` go to."""
    engine: Engine = Engine()
    """What makes the tokens."""
    hardware: Hardware = Hardware()
    """The cards that the job is planned for."""
    plan: Plan = Plan()
    """Limits that the plan must keep, and what it counts with."""
    run: Run = Run()
    """How the work is cut, spread and judged."""
    kubernetes: Kubernetes = Kubernetes()
    """How the job runs as pods."""

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

    def media_limits(self, roots: Iterable[str]) -> MediaLimits:
        """The limits of the section `media`; `roots` stand for folders that it does not name."""
        given = self.media.model_dump(exclude={"allowed_types", "allowed_roots"})
        named = self.media.allowed_roots
        return MediaLimits(
            **given,
            allowed_types=frozenset(self.media.allowed_types),
            allowed_roots=tuple(dict.fromkeys(roots if named is None else named)),
        )
