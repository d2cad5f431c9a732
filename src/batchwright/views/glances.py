"""A look at some rows and some answers of a run: enough to know what they are like."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchwright.core.errors import StorageError
from batchwright.core.workload import LengthHistogram
from batchwright.plan.gate import cache_for_prompts
from batchwright.profile.blocks import adapters_apart, block_signatures
from batchwright.profile.duplicates import DuplicateTally, prompt_digests
from batchwright.profile.prefixes import PrefixTally
from batchwright.profile.signs import extras_column, flat_lists, with_media
from batchwright.rundir.prepared import open_part
from batchwright.rundir.storage import Storage
from batchwright.working.committer import is_greedy

# Looking takes a second or two and no more, whatever the size of the run.
MOST_ROWS = 32_768
MOST_TOKENS = 8_000_000
MOST_PREPARED = 200
MOST_PARTS = 8
TEXTS_OF_PART = 512

# A beginning of a turn as chat templates spell it. Tokens that end a turn are left out of texts.
_MARKERS = re.compile(
    r"<\|im_start\|>|<\|im_end\|>|<\|eot_id\|>|<\|start_header_id\|>|<start_of_turn>|\[/?INST\]"
    r"|<\|(?:user|assistant)\|>"
)
# The next turn as plain text: the model plays the other side, too.
_TURNS = re.compile(r"\n\s*(?:User|Human|USER|HUMAN|### Instruction)\s*:")

# A loop fills at least so many characters at the end of an answer, with periods up to so many.
LOOP_CHARACTERS = 80
LONGEST_PERIOD = 120

_COLUMNS = ("token_ids", "max_tokens", "sampling", "extras", "error_code")


@dataclass(frozen=True, slots=True)
class RowGlance:
    """Prepared rows; see `diagnose.evidence.DataEvidence`."""

    rows: int = 0
    longest_prompt: int = 0
    mean_prompt: float = 0.0
    repeated: float = 0.0
    hit_rate_file: float = 0.0
    hit_rate_best: float = 0.0


@dataclass(frozen=True, slots=True)
class AnswerGlance:
    """Answers; see `diagnose.evidence.AnswerEvidence`."""

    outputs: LengthHistogram
    texts: int = 0
    marked: float = 0.0
    looping: float = 0.0


def glance_at_rows(
    storage: Storage,
    files: Sequence[str],
    *,
    block_size: int,
    kv_tokens: int,
    mean_output: float,
) -> RowGlance:
    """Look at the first rows of prepared parts.

    Args:
        storage: of the run.
        files: the parts, in file order.
        block_size: tokens of an engine block.
        kv_tokens: that an engine's KV cache holds; 0 if not known, and then no hit rates are.
        mean_output: tokens of an answer.
    """
    prefixes, copies = PrefixTally(block_size), DuplicateTally()
    rows = tokens = longest = 0
    for batch in _valid_rows(storage, files):
        ids, offsets = flat_lists(batch.column("token_ids"))
        lengths = np.diff(offsets).astype(np.int32)
        extras = extras_column(batch)
        prefixes.add(block_signatures(ids, offsets, block_size, adapters_apart(extras)), lengths)
        _count_copies(copies, batch, extras)
        rows += batch.num_rows
        tokens += int(lengths.sum())
        longest = max(longest, int(lengths.max(initial=0)))
        if rows >= MOST_ROWS or tokens >= MOST_TOKENS:
            break
    if not rows:
        return RowGlance()
    cache = cache_for_prompts(kv_tokens, tokens / rows, mean_output) if kv_tokens else 0
    return RowGlance(
        rows=rows,
        longest_prompt=longest,
        mean_prompt=tokens / rows,
        repeated=copies.rows / rows,
        hit_rate_file=prefixes.hit_rate(cache),
        hit_rate_best=prefixes.best_hit_rate(cache),
    )


def _count_copies(copies: DuplicateTally, batch: pa.RecordBatch, extras: list[str | None]) -> None:
    """Count the greedy rows that repeat an earlier one: only their answers can be copied."""
    sampling = batch.column("sampling").to_pylist()
    greedy = np.array([is_greedy(one or "") for one in sampling], dtype=np.bool_)
    if not greedy.any():
        return
    kept = batch.filter(pa.array(greedy))
    ids, offsets = flat_lists(kept.column("token_ids"))
    texts = [one or "" for one, wanted in zip(sampling, greedy, strict=True) if wanted]
    if extras:
        mine = [one for one, wanted in zip(extras, greedy, strict=True) if wanted]
        texts = with_media(texts, mine)
    digests = prompt_digests(ids, offsets, kept.column("max_tokens").to_pylist(), texts)
    copies.add(digests, np.diff(offsets))


def _valid_rows(storage: Storage, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows that run, a few thousand at a time; of the parts that are still there."""
    for file in files[:MOST_PREPARED]:
        try:
            reader = open_part(storage, file, _COLUMNS)
        except StorageError:  # an old run whose prepared rows were removed for their room
            continue
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            valid = batch.filter(pa.compute.is_null(batch.column("error_code")))
            if valid.num_rows:
                yield valid


def glance_at_answers(storage: Storage, files: Sequence[str], *, chat: bool) -> AnswerGlance:
    """Look at answers of some output parts, spread over the run.

    Args:
        storage: of the run.
        files: the parts.
        chat: whether prompts went through a chat template; a dialogue in plain text is no sign
            of a wrong prompt then.
    """
    step = max(1, -(-len(files) // MOST_PARTS))
    lengths: list[int] = []
    texts = marked = looping = 0
    for file in files[::step]:
        table = _answers(storage, file)
        if table is None:
            continue
        lengths += table.column("completion_tokens").drop_null().to_pylist()
        shown = table.slice(0, TEXTS_OF_PART)
        columns = (shown.column(name).to_pylist() for name in ("text", "finish_reason"))
        for text, reason in zip(*columns, strict=True):
            texts += 1
            marked += writes_turns(text or "", chat=chat)
            looping += reason == "length" and ends_in_loop(text or "")
    share = 1 / max(1, texts)
    return AnswerGlance(LengthHistogram.of(lengths), texts, marked * share, looping * share)


def _answers(storage: Storage, file: str) -> pa.Table | None:
    """The first answers of a part; None if it has none, or is gone."""
    local = storage.local_path(file)
    try:
        source = pa.BufferReader(storage.read(file)) if local is None else str(local)
        part = pq.ParquetFile(source)
        if "text" not in part.schema_arrow.names or not part.num_row_groups:
            return None
        names = ["status", "text", "finish_reason", "completion_tokens"]
        table = part.read_row_group(0, columns=names)
    except (StorageError, OSError, pa.ArrowInvalid):
        return None  # of a run that is being mended or exported just now: others will do
    # As a scalar of Arrow: for a Python string it would load pandas, if that is there.
    return table.filter(pa.compute.equal(table.column("status"), pa.scalar("ok")))


def writes_turns(text: str, *, chat: bool) -> bool:
    """Whether an answer goes on with turns of a chat that were not asked for."""
    return bool(_MARKERS.search(text) or (not chat and _TURNS.search(text)))


def ends_in_loop(text: str) -> bool:
    """Whether an answer ends in the same few words again and again."""
    for period in range(1, LONGEST_PERIOD + 1):
        length = max(LOOP_CHARACTERS, 3 * period)
        if len(text) < length + period:
            return False
        if text[-length:] == text[-length - period : -period]:
            return True
    return False
