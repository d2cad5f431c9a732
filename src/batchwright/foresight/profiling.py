"""Profile a job's rows: read, check and tokenise them in parallel, count them in file order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from batchwright.config.job import Job
from batchwright.core.errors import InputError, JobError, Stopped
from batchwright.core.profile import LengthProfile, SharedPrefix
from batchwright.core.records import OrderBatch
from batchwright.core.workload import LengthHistogram
from batchwright.drafts.signer import Signer, sign_splits
from batchwright.equip.equipment import job_tokenizer
from batchwright.foresight.signing import signs_of_splits
from batchwright.plan.seen import SeenIds
from batchwright.profile.signs import PREPARED, RowSigns, prepared_signs
from batchwright.profile.tally import ProfileTally
from batchwright.rundir.manifest import Manifest, read_manifest
from batchwright.rundir.prepared import open_part, read_columns
from batchwright.rundir.storage import Storage
from batchwright.tokens.load import own_context

GPU_BLOCK_SIZE = 16

# A look before a run: so many rows, from so many places; each then stands for this many.
LOOK_ROWS = 2048
LOOK_SPLITS = 8
LOOK_WORTH = 64

# Processes of their own that pay, measured on 45,000 rows: one process spent 20.7 s in its main
# thread and 15.3 s in the tokenizer's, which run side by side; with others, theirs spent 50.4 s
# together and this one 13.9 s. So two gain nothing, three are the first to, and many wait.
FEWEST_PROCESSES, MOST_PROCESSES = 3, 8

# Characters shown of a shared prefix.
TEXT_LENGTH = 400


def choose_processes(job: Job, num_splits: int, cores: int) -> int:
    """How many processes read and tokenise for a profile; 1 is this process itself.

    Args:
        job: `run.prepare_processes` is taken as given where the user has set it.
        num_splits: pieces of input that can be read side by side.
        cores: that may be used.
    """
    if "prepare_processes" in job.run.model_fields_set:
        return job.run.prepare_processes
    wanted = min(num_splits, cores // 2, MOST_PROCESSES)
    return wanted if wanted >= FEWEST_PROCESSES else 1


def profile_rows(
    manifest: Manifest,
    job: Job,
    *,
    sample: float | None,
    cache_tokens: int | None,
    processes: int,
    say: Callable[[int], None],
    stop: threading.Event,
    block_size: int | None = None,
) -> LengthProfile:
    """Read, check, render and tokenise every row, and measure how long the work is.

    Args:
        manifest: the surveyed job.
        job: the job itself.
        sample: share of the rows to look at, above 0 and below 1; None for all.
        cache_tokens: size of the prefix cache for the hit rates; None: without bounds.
        processes: how many read and tokenise; 1 does it in this process.
        say: told how many rows have been counted, after each batch.
        stop: set it to give up.
        block_size: tokens of an engine block; None for the job's own `block_size`, else 16.

    Raises:
        InputError: a file is damaged, or there are no rows.
        JobError: the job cannot be prepared, or an option is wrong.
        Stopped: `stop` was set.
    """
    _check_sample(sample)
    block_size = block_size or _block_size(job)
    counter = _Counter(manifest, job, block_size)
    tokenizer = job_tokenizer(job)
    signer = Signer(manifest, job, tokenizer, sample, block_size)
    if processes > 1 and len(manifest.splits) > 1:
        source = signs_of_splits(manifest, job, sample, block_size, processes, stop)
    else:
        source = sign_splits(signer, len(manifest.splits))
    with closing(source):
        for split, signs in source:
            if stop.is_set():
                raise Stopped("stopped before all rows were profiled")
            counter.add(split, signs)
            say(counter.tally.rows)
            if counter.full:
                break
    if not counter.tally.rows:
        raise InputError(f"no rows in {job.input.path}", "Every line is blank.")
    profile = counter.tally.profile(cache_tokens, share=sample, exact=tokenizer.exact)
    return _with_texts(profile, _reader(counter, signer), tokenizer.decode)


def look_at_rows(manifest: Manifest, job: Job, stop: threading.Event) -> LengthProfile:
    """The profile of a few rows from all over the input, in a second or two.

    Where these are not all rows, each stands for many, so that a plan does not take the job for a
    short one.
    """
    block_size = _block_size(job)
    tokenizer = job_tokenizer(job)
    tally = _tally(manifest, job, block_size)
    signer = Signer(manifest, job, tokenizer, None, block_size)
    splits = np.linspace(0, len(manifest.splits) - 1, min(LOOK_SPLITS, len(manifest.splits)))
    whole = len(splits) == len(manifest.splits)
    for split in splits.round().astype(int).tolist():
        if stop.is_set():
            raise Stopped("stopped before the rows were looked at")
        signs, complete = signer.head(split, LOOK_ROWS // len(splits))
        whole = whole and complete
        for one in signs:
            tally.add(one, {})
    profile = tally.profile(None, exact=tokenizer.exact)
    if whole or not profile.prompts.rows:
        return profile
    prompts = profile.prompts
    many = tuple(count * LOOK_WORTH for count in prompts.counts)
    return replace(profile, prompts=LengthHistogram(prompts.lengths, many))


def _reader(counter: _Counter, signer: Signer) -> Callable[[int], Sequence[int]]:
    """The token ids of a row, read again: only the few largest prefixes are shown as text."""

    def token_ids(row: int) -> Sequence[int]:
        split = max(one for one, first in counter.first_rows.items() if first <= row)
        return signer.token_ids(split, row - counter.first_rows[split])

    return token_ids


def _check_sample(sample: float | None) -> None:
    if sample is not None and not 0 < sample < 1:
        raise JobError(f"--sample {sample}: give a share above 0 and below 1, such as 0.05")


def profile_prepared(
    storage: Storage,
    batches: Sequence[OrderBatch],
    *,
    cache_tokens: int | None = None,
    block_size: int | None = None,
) -> LengthProfile:
    """The same from the prepared parts of a run, as far as they are in order.

    What was rejected as too long has left no tokens there: such rows are counted as over the
    limit, but are not among the longest, and scripts are not looked at.
    """
    manifest = read_manifest(storage)
    job = Job.model_validate(manifest.job)
    block_size = block_size or _block_size(job)
    tally = _tally(manifest, job, block_size)
    parts = [part for batch in batches for part in batch.parts if batch.generation == 0]
    repeats: dict[str, dict[int, str]] = {}
    for batch in batches:
        for one in batch.duplicates:
            repeats.setdefault(one.file, {})[one.index] = "duplicate_id"
    for part in parts:
        start = 0
        reader = open_part(storage, part.file, PREPARED)
        for index in range(reader.num_record_batches):
            signs = prepared_signs(reader.get_batch(index), block_size).head(part.rows - start)
            tally.add(
                signs,
                {
                    at - start: code
                    for at, code in repeats.get(part.file, {}).items()
                    if start <= at < start + len(signs)
                },
            )
            start += len(signs)
    tokenizer = job_tokenizer(job)
    profile = tally.profile(cache_tokens, exact=tokenizer.exact)

    def token_ids(row: int) -> Sequence[int]:
        part = next(one for one in parts if one.first_row <= row < one.first_row + one.rows)
        table = read_columns(storage, part.file, ["token_ids"])
        ids: list[int] = table.column("token_ids")[row - part.first_row].as_py()
        return ids

    return _with_texts(profile, token_ids, tokenizer.decode)


class _Counter:
    """Counts signs in file order; what depends on earlier rows is decided here."""

    def __init__(self, manifest: Manifest, job: Job, block_size: int) -> None:
        self.tally = _tally(manifest, job, block_size)
        self.first_rows: dict[int, int] = {}
        self._limit = job.input.limit
        self._unique = bool(manifest.id_column) and job.input.duplicate_ids == "reject"
        self._seen = SeenIds()

    @property
    def full(self) -> bool:
        """Whether `input.limit` is reached."""
        return self._limit is not None and self.tally.rows >= self._limit

    def add(self, split: int, signs: RowSigns) -> None:
        """Count the next rows of a split."""
        self.first_rows.setdefault(split, self.tally.rows)
        if self._limit is not None:
            signs = signs.head(self._limit - self.tally.rows)
        self.tally.add(signs, self._repeats(signs))

    def _repeats(self, signs: RowSigns) -> dict[int, str]:
        if not self._unique:
            return {}
        usable = [index for index, code in enumerate(signs.codes) if code is None]
        rows = np.asarray(usable, dtype=np.int64) + self.tally.rows
        found = self._seen.add([str(signs.ids[index]) for index in usable], rows)
        return {usable[index]: "duplicate_id" for index, _ in found}


def _tally(manifest: Manifest, job: Job, block_size: int) -> ProfileTally:
    return ProfileTally(
        block_size=block_size, limit=manifest.max_model_len, context=own_context(job)
    )


def _block_size(job: Job) -> int:
    asked = job.engine.options.get("block_size")
    if asked is None:
        return GPU_BLOCK_SIZE
    if not isinstance(asked, int) or isinstance(asked, bool) or asked < 1:
        raise JobError(f"engine.options.block_size: a number of tokens (got {asked!r})")
    return asked


def _with_texts(
    profile: LengthProfile,
    token_ids: Callable[[int], Sequence[int]],
    decode: Callable[[Sequence[Sequence[int]], Sequence[Sequence[int]]], list[str]],
) -> LengthProfile:
    """The profile with the beginning of each large shared prefix as text."""
    top = profile.prefix.top
    ids = [list(token_ids(one.row)[: min(one.tokens, TEXT_LENGTH)]) for one in top]
    texts = decode(ids, [[] for _ in ids]) if ids else []
    named = tuple(_named(one, text) for one, text in zip(top, texts, strict=True))
    return replace(profile, prefix=replace(profile.prefix, top=named))


def _named(prefix: SharedPrefix, text: str) -> SharedPrefix:
    return replace(prefix, text=text if len(text) <= TEXT_LENGTH else f"{text[:TEXT_LENGTH]}…")
