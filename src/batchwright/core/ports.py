"""The protocols through which the stages meet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from batchwright.core.outcomes import Outcome
from batchwright.core.records import Prompt, Request
from batchwright.core.stores import RowFault, StoreLimits, StoreShape
from batchwright.core.tasks import GENERATE, TaskSettings
from batchwright.core.vectors import EmbeddingSettings


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What an engine is started with, plain enough to cross a process boundary.

    Attributes:
        kind: name of the adapter, a key of `wiring.ENGINES`.
        model: folder or hub id.
        options: passed to the engine by its own names.
        eos_token_ids: ids that end an answer, besides those that a request names.
        max_num_seqs: rows that run at the same time at most.
        max_model_len: prompt and output tokens of one row at most.
        task: what is asked of the model.
        adapters: folder or hub id of each LoRA adapter, by the name that requests use.
    """

    kind: str
    model: str
    max_num_seqs: int
    max_model_len: int
    eos_token_ids: tuple[int, ...] = ()
    vocab_size: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    task: TaskSettings = GENERATE
    adapters: dict[str, str] = field(default_factory=dict)

    @property
    def embedding(self) -> EmbeddingSettings | None:
        """The vectors that the model makes; None where it makes something else."""
        return self.task.embedding


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the started engine says of itself. `kv_tokens` is 0 when it does not say."""

    name: str
    version: str
    device: str
    kv_tokens: int = 0
    pid: int = 0

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """A reading of the engine. `steps` grows while it is alive: a hang is when it does not.

    Attributes:
        running: rows that get a token in each step.
        waiting: rows in the engine that have no place yet.
        kv_use: share of the KV cache in use, 0 to 1.
        preemptions: rows thrown out of a full cache since the start.
        steps: made since the start.
        prompt_tokens: computed since the start; those that the prefix cache saved do not count.
        output_tokens: made since the start, also those of rows that are not finished.
        drafted_tokens: proposed by speculative decoding since the start.
        accepted_tokens: of those, the ones that the model itself would have made.
        prefix_tokens: of prompts that the prefix cache was asked for since the start.
        prefix_hit_tokens: of those, the ones that it had.
    """

    running: int = 0
    waiting: int = 0
    kv_use: float = 0.0
    preemptions: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    prefix_tokens: int = 0
    prefix_hit_tokens: int = 0


class Engine(Protocol):
    """Makes tokens. Rows go in, outcomes come out in any order, each row exactly once."""

    def preload(self, settings: EngineSettings) -> None:
        """Do what `start` begins with and what costs nothing in vain: imports. May be left out.

        What goes wrong here goes wrong in `start` too, and is raised there.
        """

    def start(self, settings: EngineSettings) -> EngineInfo:
        """Load the model. Raises EngineError or JobError."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests. A bad one becomes a failed outcome of a later step."""

    def abort(self, rows: Iterable[int]) -> None:
        """Forget these rows: no outcome will come for them."""

    def step(self, timeout_s: float) -> list[Outcome]:
        """Work for at most about `timeout_s` and return what has finished."""

    def gauges(self) -> EngineGauges:
        """Read the engine without disturbing it."""

    def stop(self) -> None:
        """Free everything. May be called twice."""


class PairEnds(NamedTuple):
    """Token ids ahead of, between and after two texts that a model reads together.

    `typed` says whether the model is told which tokens belong to the second text: those and the
    ids after them have the type 1, all others 0.
    """

    head: list[int]
    middle: list[int]
    tail: list[int]
    typed: bool


class Tokenizer(Protocol):
    """Text to token ids and back, in batches."""

    @property
    def vocab_size(self) -> int:
        """Ids lie in [0, vocab_size)."""

    @property
    def exact(self) -> bool:
        """False when lengths are only estimates, because the model's tokenizer is not here."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends an answer: the tokenizer's and the generation config's."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Spellings that become one special token wherever they stand in a text."""

    @property
    def special_ends(self) -> tuple[list[int], list[int]]:
        """The ids that the model wants ahead of a raw text and after it: BOS, [CLS] … [SEP]."""

    @property
    def pair_ends(self) -> PairEnds:
        """What the model wants around two texts that it reads together."""

    @property
    def has_chat_template(self) -> bool:
        """Whether `render_chat` can work."""

    def render_chat(self, prompt: Prompt) -> str:
        """Messages to the text that the model was trained on. Raises RowError."""

    def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Texts to ids. With `add_special_tokens`, exactly one BOS if the model wants one."""

    def decode(
        self, token_ids: Sequence[Sequence[int]], prompts: Sequence[Sequence[int]]
    ) -> list[str]:
        """Outputs to texts, special tokens left out; `prompts` are the ids that went before."""

    def spell(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as a text of its own, special ones too."""


class Fitted(NamedTuple):
    """Rows as a database takes them, those that it cannot take, and what was changed, by code."""

    rows: pa.Table
    faults: list[RowFault]
    warnings: dict[str, int]


class VectorStore(Protocol):
    """A table of vectors in a database. Rows are known by their id: writing one again replaces it.

    A table of rows has `row` (int64), `id` (large_string), `numeric_id` (bool: the id was a number),
    `embedding` (fixed_size_list of floats, no nulls) and the columns of the shape.
    """

    @property
    def limits(self) -> StoreLimits:
        """What it takes at a time."""

    def open(self, shape: StoreShape, *, create: bool) -> bool:
        """Connect, and make what is missing if `create` says so.

        Returns:
            Whether the table was there before.

        Raises:
            JobError: the table that is there does not fit the shape; no row was written.
            StoreError: the database cannot be reached, or refuses.
        """

    def identities(self, ids: Sequence[str]) -> list[str]:
        """What ids become in the database: equal ones are one row there."""

    def fit(self, rows: pa.Table) -> Fitted:
        """Find the rows that cannot be stored, and change what has to be changed in the others."""

    def sizes(self, rows: pa.Table) -> Any:
        """Bytes of each row in a request, at most about (an array of numpy)."""

    def write(self, rows: pa.Table) -> None:
        """Insert or replace rows; all are searchable, or none. May be called by several threads.

        Raises:
            Unreachable: try again later.
            Refused: for what is in the rows; each may be tried alone.
            StoreError: the database refuses any row.
        """

    def finish(self) -> list[str]:
        """Build what is faster built after all rows are there; returns notes for people."""

    def count(self) -> int:
        """Rows in the table."""

    def close(self) -> None:
        """Let go of the database. May be called twice."""


class Clock(Protocol):
    """Time, so that tests need not wait."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    def sleep(self, seconds: float) -> None:
        """Wait."""
