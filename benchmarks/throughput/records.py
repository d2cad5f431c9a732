"""What the benchmark passes around: a workload's rows, a run to make, and what it measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.throughput.lengths import Lengths


class Segment(NamedTuple):
    """A piece of a prompt. Equal keys are equal text: that is how rows share a prefix."""

    key: int
    tokens: int


class Row(NamedTuple):
    """One row: the pieces of its prompt, and how many tokens its answer has.

    Where lengths are hidden, `max_tokens` is the true one, which only we know.
    """

    id: str
    segments: tuple[Segment, ...]
    max_tokens: int

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the whole prompt."""
        return sum(segment.tokens for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Workload:
    """Rows in file order.

    Attributes:
        name: `W1`, or with a variant: `W3-1.2`.
        rows: what to run.
        kv_tokens: size that the KV pool is cut to; None for all that the card holds.
        task: `generate` or `embed`.
        purpose: what it is to show, in a few words.
        hidden: the law of its lengths, if no system is told them.
    """

    name: str
    rows: tuple[Row, ...]
    kv_tokens: int | None
    task: str
    purpose: str
    hidden: Lengths | None = None

    def told_max_tokens(self, row: Row) -> int:
        """What a system is told of a row's answer: its length, or a cap that is the same for all."""
        return self.hidden.longest if self.hidden else row.max_tokens

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens as sent."""
        return sum(row.prompt_tokens for row in self.rows)

    @property
    def output_tokens(self) -> int:
        """Tokens of all answers; none for embeddings."""
        return sum(row.max_tokens for row in self.rows)

    @property
    def longest(self) -> int:
        """Prompt and answer of the longest row, as far as a system can know."""
        return max(row.prompt_tokens + self.told_max_tokens(row) for row in self.rows)

    def shareable_tokens(self) -> int:
        """Prompt tokens that some earlier row begins with too: what an endless cache would save."""
        seen: set[tuple[int, ...]] = set()
        shared = 0
        for row in self.rows:
            path: tuple[int, ...] = ()
            for segment in row.segments:
                path = (*path, segment.key)
                if path in seen:
                    shared += segment.tokens
                seen.add(path)
        return shared


@dataclass(frozen=True, slots=True)
class Case:
    """A workload as files, with the conditions that hold for every system.

    Attributes:
        workload: the rows.
        model: folder with config.json and a tokenizer.
        data: JSONL with `id`, `prompt`, `max_tokens`.
        conditions: engine options that describe the machine and the model, equal for everybody:
            `max_model_len`, `kv_cache_memory_bytes`, `load_format`, …
        tuned: engine options for batchwright and for the systems that are set up like it; empty
            if batchwright chooses for itself.
        folder: where runs of this case leave what they write.
        on_cpu: no GPU here.
        environment: variables that every system's processes get.
    """

    workload: Workload
    model: Path
    data: Path
    conditions: dict[str, Any]
    tuned: dict[str, Any]
    folder: Path
    on_cpu: bool
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def told_longest(self) -> int:
        """The longest answer that any row asks for."""
        return max(self.workload.told_max_tokens(row) for row in self.workload.rows)


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run took. Times in seconds, from the start of its process.

    Attributes:
        ready_s: until the engine was up; None if the system does not tell.
        work_s: from then until the last answer was on disk (batchwright: its last receipt).
        wall_s: until the process ended; for an engine that several runs share, start plus work.
        cpu_s: CPU seconds of all processes, those of the engine's start included unless shared.
        peak_rss_bytes: of all processes together.
        cached_tokens: prompt tokens that came from the prefix cache; None if the system does not tell.
        preemptions: None if the system does not tell.
        details: more figures of this system.
    """

    ready_s: float | None
    work_s: float | None
    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    cached_tokens: int | None = None
    preemptions: int | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the raw figures: a run, or why there is none.

    Attributes:
        problem: why the run does not count: skipped, failed, answers wrong. Empty if it counts.
        limit_share: share of the hardware's limit (L1) that it reached; None without a GPU.
    """

    workload: str
    system: str
    repeat: int
    rows: int
    prompt_tokens: int
    output_tokens: int
    problem: str = ""
    measured: Measured | None = None
    limit_share: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return asdict(self)


class RunProblem(Exception):
    """A run that did not come to a result that counts; the message says why."""
