"""What flows: splits, rows, requests, outcomes, chunks and the receipts that make them count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from batchwright.core.media import Media, MediaReference


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input file and what identifies its content.

    `identity` is the etag where the store has one, else the modification time in ns.
    """

    path: str
    size: int
    identity: str


@dataclass(frozen=True, slots=True)
class Split:
    """A piece of input that one task reads.

    `start` and `stop` are byte offsets for JSONL (the split owns the lines that *begin* in
    [start, stop)), row group numbers for Parquet, and 0 and -1 for a file that must be read
    whole. `also` are small files that are read whole after it, in this order: each of them as a
    split of its own would cost more than its rows.
    """

    ordinal: int
    path: str
    format: str
    start: int
    stop: int
    also: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Its files, in order."""
        return (self.path, *self.also)


@dataclass(frozen=True, slots=True)
class RowBatch:
    """A run of consecutive rows of one split, good and bad alike.

    Attributes:
        records: one dict per row; None where `problems` says why there is none. A row with a
            problem that has a record all the same shows by it which row it is.
        kept: what the output keeps of each row: `large_string` holding the JSON object, or a
            `struct` of the file's own columns (Parquet). Same length as `records`; null where
            the row could not be parsed.
        lines: for each row, the physical line at which it begins, counted from 1 at the start of
            the split, or of its file where a split has several; for Parquet, the row number in the
            file counted from 0.
        problems: index into `records` to (code, message).
        num_lines: physical lines of the split, or of the last file, consumed up to the end of this
            batch.
        paths: for each row, the file that it stands in.
    """

    records: list[dict[str, Any] | None]
    kept: pa.Array
    lines: list[int]
    problems: dict[int, tuple[str, str]] = field(default_factory=dict)
    num_lines: int = 0
    paths: list[str] = field(default_factory=list)


class Prompt(NamedTuple):
    """What a valid row asks the model: exactly one of the first three is set.

    `text` is raw text for the model; `messages` go through the chat template; `token_ids` go to
    the engine as they are. `template_kwargs` are for the chat template (`enable_thinking`). `media`
    are the images and sounds, in the order of their placeholders.
    """

    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    token_ids: list[int] | None = None
    tools: list[dict[str, Any]] | None = None
    template_kwargs: dict[str, Any] | None = None
    media: tuple[MediaReference, ...] = ()


class TextPair(NamedTuple):
    """What a valid row of a scoring task asks: how well each document belongs to the query.

    `documents` holds None for one that is missing. `listed` says that the row brought a list, and
    so gets one.
    """

    query: str
    documents: tuple[str | None, ...]
    listed: bool


class Request(NamedTuple):
    """A valid row made ready for an engine.

    Attributes:
        row: position of the row in the whole input, from 0.
        token_ids: the prompt; on its way from a prepared part an `array` of 4 bytes a token, where
            a list would take 36.
        max_tokens: cap of output tokens, already cut to the room that the context leaves.
        sampling: canonical JSON of the other sampling fields, by vLLM's names.
        extras: JSON object of what else the engine needs for this row; empty if nothing.
        media: the images and sounds that `extras` refer to, once they have been fetched.
        media_tokens: what they are expected to add to the prompt.
    """

    row: int
    token_ids: Sequence[int]
    max_tokens: int
    sampling: str
    extras: str = ""
    media: tuple[Media, ...] = ()
    media_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, those of its images and sounds included."""
        return len(self.token_ids) + self.media_tokens


# In place of a first row: the rows of this part do not follow each other in the input.
GROUPED = -1


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows [start, stop) of a prepared part.

    `first_row` is the row number of index 0; `GROUPED` where the part has a column `row` instead.
    """

    part: str
    start: int
    stop: int
    first_row: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A list of rows in planned order: the unit of claim, commit and resume.

    `generation` is 0 for the first pass over the data and grows by one with each `retry`.
    """

    generation: int
    number: int
    slices: tuple[Slice, ...]

    @property
    def name(self) -> str:
        """For file names and people: `chunk-0-000017`."""
        return f"chunk-{self.generation}-{self.number:06d}"

    @property
    def num_rows(self) -> int:
        """Rows in the chunk."""
        return sum(piece.stop - piece.start for piece in self.slices)


@dataclass(frozen=True, slots=True)
class PreparedReceipt:
    """Says that a prepared part counts. A split has one or more parts; the last says so.

    `num_lines` is the physical lines of the split up to the end of this part. `column_kinds`
    holds, for JSON and CSV rows, the JSON kinds seen in each column. `file_rows`, where the split
    has several files, says whose the rows are: (place among the split's files, number of rows).
    """

    split: int
    part: int
    file: str
    rows: int
    rejected: int
    num_lines: int
    last: bool
    prompt_tokens: int
    sha256: str
    warnings: dict[str, int] = field(default_factory=dict)
    column_kinds: dict[str, list[str]] = field(default_factory=dict)
    file_rows: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Receipt:
    """Says that an output part counts: written last, once.

    A chunk has one receipt, as a rule. Where some of its rows take long, or the worker has to
    stop, the rows that are finished get theirs first: `sequence` counts them, and `last` closes
    the chunk. `finished_at` is Unix time; 0 if it was not noted. `times` counts rows by the time
    from when the feeder had them to their outcome (see `core.latency`), `slowest` names a few with
    their seconds; rows that took the answer of another are in neither. `first_tokens` counts rows
    likewise by the time until their first token; empty where the engine does not tell.
    """

    generation: int
    chunk: int
    file: str
    sha256: str
    rows: int
    ok: int
    failed: int
    truncated: int
    prompt_tokens: int
    completion_tokens: int
    first_row: int
    last_row: int
    worker: str
    seconds: float
    failures: dict[str, int] = field(default_factory=dict)
    sequence: int = 0
    last: bool = True
    finished_at: float = 0.0
    times: dict[str, int] = field(default_factory=dict)
    slowest: tuple[tuple[int, float], ...] = ()
    first_tokens: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OrderedPart:
    """A prepared part with its place in the whole input.

    Attributes:
        file: the prepared part.
        split: ordinal of the split it belongs to.
        part: number of the part within the split.
        path: the input file; the split's first where it has several.
        first_row: row number of its first row.
        first_line: physical lines of the input file before the split.
        rows: how many of its rows count (fewer than it has only where `input.limit` cuts).
        rejected: how many of those are rejected, duplicates not counted.
    """

    file: str
    split: int
    part: int
    path: str
    first_row: int
    first_line: int
    rows: int
    rejected: int


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Row `index` of a prepared part has the same id as the earlier row `of_row`."""

    file: str
    index: int
    row: int
    of_row: int


@dataclass(frozen=True, slots=True)
class OrderBatch:
    """A stretch of the order: written once, it numbers rows and cuts chunks for every worker.

    Attributes:
        generation: 0 for the first pass, then one more with each `retry`.
        sequence: number of this batch within the generation.
        parts: the prepared parts that it numbers.
        chunks: the chunks that it cuts.
        waiting: rows that are in no chunk yet; the next batch goes on with them.
        carried: before them in line are the last so many of the rows that waited already.
        duplicates: rows rejected because their id was seen before.
        rows: rows numbered by this and all earlier batches.
        last: no batch follows.
        replaces: for each chunk of a retry, the failures that its rows had before, by code.
        replaces_cut: for each chunk of a retry, how many of those answers were cut.
        pilot_chunks: so many of the first chunks are the pilot.
        order: of the rows in its chunks: `file`, `prefix`, `length` or `longest`.
    """

    generation: int
    sequence: int
    parts: tuple[OrderedPart, ...]
    chunks: tuple[Chunk, ...]
    waiting: tuple[Slice, ...]
    duplicates: tuple[Duplicate, ...]
    rows: int
    last: bool
    replaces: tuple[dict[str, int], ...] = ()
    pilot_chunks: int = 0
    carried: int = 0
    order: str = "file"
    replaces_cut: tuple[int, ...] = ()

    @property
    def rejected(self) -> int:
        """Rows rejected in this batch."""
        return sum(part.rejected for part in self.parts) + len(self.duplicates)


@dataclass(frozen=True, slots=True)
class OrderDecision:
    """In which order the rows run that were in no chunk when all were prepared, and why.

    Attributes:
        asked: `run.order` of the job file.
        order: `file`, `prefix`, `length` or `longest`.
        reason: in words.
        rows: that the figures are about.
        prompt_tokens: of these rows.
        output_tokens: expected of them, by the answers so far, else by `max_tokens`.
        cache_tokens: what the KV cache keeps of prompts beside the answers; None if not known.
        hit_rate_file: share of prompt tokens that the cache would save in file order.
        hit_rate_best: the same with rows that share a prefix next to each other.
        gain: predicted share of the time that grouping saves.
        seconds_left: predicted for these rows in file order; None if no speed is known yet.
    """

    asked: str
    order: str
    reason: str
    rows: int
    prompt_tokens: int
    output_tokens: int
    cache_tokens: int | None = None
    hit_rate_file: float = 0.0
    hit_rate_best: float = 0.0
    gain: float = 0.0
    seconds_left: float | None = None
