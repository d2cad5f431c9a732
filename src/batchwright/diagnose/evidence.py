"""What a run left behind, added up: all that the rules may know. Shares are from 0 to 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from batchwright.core.workload import NO_LENGTHS, LengthHistogram

# Less work than this is ten readings: its shares are mostly chance.
LEAST_WORK_S = 20.0

# Fewer rows than this say nothing about the rest.
LEAST_ROWS = 100


class EngineFault(NamedTuple):
    """What ended an engine.

    Attributes:
        code: its name among the known fatal lines; `unknown` where no line is known.
        line: the line that says so.
        worker: whose engine; empty if nobody noted it.
        at_start: whether it had not been up.
        summary: what happened, in a sentence without a full stop; empty if not known.
        remedy: what to do about it; empty if not known.
    """

    code: str
    line: str
    worker: str = ""
    at_start: bool = True
    summary: str = ""
    remedy: str = ""


class Stop(NamedTuple):
    """How a run stopped that is not finished.

    Attributes:
        chunks_done: of `chunks`, which are all that are known.
        lost: workers that ended without a word.
        message: of the error that a worker left; empty if none did.
        hint: what to do about it.
    """

    chunks_done: int
    chunks: int
    lost: int = 0
    message: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class CardEvidence:
    """One card over a worker's work.

    Attributes:
        index: as the driver counts.
        use: mean share of the time in which a kernel ran.
        clock: mean clock of its processors, as a share of the highest.
        throttled: share of the readings in which the clock was held down, by reason.
        others_bytes: the most that processes which are not the worker's had.
        total_bytes: of its memory.
        link_bytes_s: over PCIe, the busier way.
        nvlink_bytes_s: over its NVLinks; None where there are none.
        temperature_c: the highest.
    """

    index: int
    use: float | None = None
    clock: float | None = None
    throttled: Mapping[str, float] = field(default_factory=dict)
    others_bytes: int = 0
    total_bytes: int | None = None
    link_bytes_s: float = 0.0
    nvlink_bytes_s: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerEvidence:
    """One engine and its worker, from its first row to its last.

    What is a share is one of `seconds`. `running`, `full`, `kv_use`, rates and cards leave the
    tail out: with few rows left no engine is full.

    Attributes:
        name: of the worker.
        host: its machine.
        device: of the engine; `cpu` and `none` have no card.
        seconds: from the first row in to the last one out.
        start_up_s: from the start of its process until the engine was up; None if not known.
        idle_s: after its last row, while others of the run had work.
        tail_s: lost at the end of its own work, with its engine half empty: see `core.tail`.
        starved: the engine had room and no prepared row was there.
        media: the engine had room and the next rows waited for their media.
        commit_wait: the worker could not go on before commits were done.
        rows: that came out.
        preemptions: rows thrown out of a full KV cache.
        computed_prompt_tokens: without those that the prefix cache saved.
        output_tokens: made.
        tokens_per_s: work, as prompt tokens plus twice the output tokens, a second.
        running: mean rows that ran at the same time.
        cap: mean rows that the feeder let in.
        max_num_seqs: rows that may run at the same time.
        full: share of the readings with nearly all slots taken.
        kv_use: mean share of the KV cache in use.
        kv_peak: the highest.
        kv_tokens: that its KV cache holds; 0 if not known.
        step_s: mean seconds of a step; None if not known.
        fixed_step: share of a full step that does not depend on how many rows run; None if no
            steps of different sizes were seen.
        busiest_core: cores that the busiest process of the engine keeps busy; None if not known.
        quarters: tokens per second in each quarter of the work.
        committed_bytes_s: written to the run directory.
        cards: those of the worker.
    """

    name: str
    host: str = ""
    device: str = ""
    seconds: float = 0.0
    start_up_s: float | None = None
    idle_s: float = 0.0
    tail_s: float = 0.0
    starved: float = 0.0
    media: float = 0.0
    commit_wait: float = 0.0
    rows: int = 0
    preemptions: int = 0
    computed_prompt_tokens: int = 0
    output_tokens: int = 0
    tokens_per_s: float = 0.0
    running: float = 0.0
    cap: float = 0.0
    max_num_seqs: int = 0
    full: float = 0.0
    kv_use: float = 0.0
    kv_peak: float = 0.0
    kv_tokens: int = 0
    step_s: float | None = None
    fixed_step: float | None = None
    busiest_core: float | None = None
    quarters: tuple[float, ...] = ()
    committed_bytes_s: float = 0.0
    cards: tuple[CardEvidence, ...] = ()

    @property
    def reliable(self) -> bool:
        """Whether it worked for long enough that shares of its time mean something."""
        return self.seconds >= LEAST_WORK_S

    @property
    def waited(self) -> float:
        """Share of the time in which the engine did not have the rows that it had room for."""
        return min(1.0, self.starved + self.media + self.commit_wait)

    @property
    def card_use(self) -> float | None:
        """Mean use of its cards; None if nobody could tell."""
        known = [card.use for card in self.cards if card.use is not None]
        return sum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True)
class PrepareEvidence:
    """The processes that read and tokenise, together."""

    processes: int
    rows: int
    tokens: int
    read_s: float
    tokenize_s: float
    write_s: float
    idle_s: float

    @property
    def busy_s(self) -> float:
        """Seconds in which they prepared."""
        return self.read_s + self.tokenize_s + self.write_s

    @property
    def idle(self) -> float:
        """Share of their time in which they had nothing to prepare."""
        whole = self.busy_s + self.idle_s
        return self.idle_s / whole if whole else 0.0


@dataclass(frozen=True, slots=True)
class HostEvidence:
    """A machine of the run, at its fullest."""

    name: str
    cores: int = 0
    shm_bytes: int | None = None
    shm_total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DataEvidence:
    """The input.

    Attributes:
        files: of the input.
        bytes: of all of them.
        rows_seen: prepared rows that were looked at for what follows.
        longest_prompt: tokens.
        mean_prompt: tokens.
        repeated: share of the rows that ask greedily what one before them asks.
        hit_rate_file: share of prompt tokens that a prefix cache of this size saves in file order.
        hit_rate_best: the same with rows that share a beginning next to each other.
    """

    files: int = 0
    bytes: int = 0
    rows_seen: int = 0
    longest_prompt: int = 0
    mean_prompt: float = 0.0
    repeated: float = 0.0
    hit_rate_file: float = 0.0
    hit_rate_best: float = 0.0


@dataclass(frozen=True, slots=True)
class AnswerEvidence:
    """The answers: `texts` of them were looked at, spread over the run.

    Attributes:
        rows: answers in all.
        outputs: output tokens of those looked at.
        cut: share of all that `max_tokens` ended.
        texts: answers whose text was looked at.
        marked: share of them in which a turn of a chat is written out.
        looping: share of them that end in the same words again and again.
        prompt_tokens: of all rows.
        output_tokens: of all rows.
    """

    rows: int = 0
    outputs: LengthHistogram = NO_LENGTHS
    cut: float = 0.0
    texts: int = 0
    marked: float = 0.0
    looping: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """What the run was told, by the job file or the plan.

    Attributes:
        chat: whether prompts went through a chat template.
        raw_to_chat_model: prompts are plain text, and the model has a chat template or the name
            of one that was tuned for chat.
        order: in which most rows ran.
        asked_order: `run.order` of the job file.
        chunk_rows: `run.chunk_rows` of the job file.
        user_options: names of the engine options that the job file gives.
        max_failed: share of rows without an answer above which a run exits with 4.
    """

    task: str = "generate"
    engine: str = "vllm"
    chat: bool = True
    raw_to_chat_model: bool = False
    replicas: int = 1
    engines_per_gpu: int = 1
    tensor_parallel: int = 1
    prepare_processes: int = 1
    media_workers: int = 16
    order: str = "file"
    asked_order: str = "auto"
    chunk_rows: int | None = None
    repeat_once: bool = False
    max_model_len: int = 0
    max_tokens: int = 512
    gpu_memory_utilization: float | None = None
    watermark: float | None = None
    max_num_batched_tokens: int | None = None
    enforce_eager: bool = False
    user_options: frozenset[str] = frozenset()
    temperature: float | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool = False
    max_failed: float = 0.01


@dataclass(frozen=True, slots=True)
class PlanEvidence:
    """Figures of `plan.json`, of one replica's card."""

    gpu: str
    memory_bytes: int
    bandwidth_bytes_s: float
    flops: float
    nvlink: bool
    weight_bytes: int
    active_parameters: int
    kv_bytes_per_token: int
    activations_bytes: int = 0
    cards: int = 1


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of a run.

    Attributes:
        stop: None while somebody works on it, and of a finished run.
        wall_s: from its first sign of life to its last.
        rows: read so far.
        failed: by code, rows that the engine has no answer for.
        rejected: rows that did not pass the checks.
        restarts: of engines that died.
        unknown: what could not be found out, a sentence each.
    """

    settings: Settings = Settings()
    workers: tuple[WorkerEvidence, ...] = ()
    prepare: PrepareEvidence | None = None
    hosts: tuple[HostEvidence, ...] = ()
    data: DataEvidence = DataEvidence()
    answers: AnswerEvidence = AnswerEvidence()
    plan: PlanEvidence | None = None
    faults: tuple[EngineFault, ...] = ()
    stop: Stop | None = None
    wall_s: float = 0.0
    rows: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)
    rejected: int = 0
    restarts: int = 0
    unknown: tuple[str, ...] = ()

    @property
    def reliable(self) -> tuple[WorkerEvidence, ...]:
        """The workers whose shares mean something."""
        return tuple(one for one in self.workers if one.reliable)

    @property
    def engine_seconds(self) -> float:
        """Time of all engines together: starting, working, idle at the end."""
        return sum((one.start_up_s or 0.0) + one.seconds + one.idle_s for one in self.workers)
