"""Rows to signs: what the profile is counted from, made for one batch after the other."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from batchwright.config.job import Job
from batchwright.core.errors import RowError
from batchwright.core.ports import Tokenizer
from batchwright.core.records import RowBatch
from batchwright.drafts.drafting import RowPreparer, make_prompt_builder
from batchwright.profile.scripts import main_script
from batchwright.profile.signs import NOT_COUNTED, NOT_TAKEN, RowSigns, make_signs, with_media
from batchwright.read.rows import read_split
from batchwright.rundir.manifest import Manifest
from batchwright.tokens.fit import Fitter
from batchwright.validate.sampling import shortest_answer

# The preparer is told no limit, so that rows over it are measured too; it is applied here.
_NO_LIMIT = 1 << 30

# One row in so many is looked at for its script.
_SCRIPT_EVERY = 8

Signs = Generator[tuple[int, RowSigns], None, None]


class Signer:
    """Batches of rows to their signs.

    Args:
        sample: share of the rows to look at, None for all. A row is taken by a hash of its split
            and its place in it, so the same rows are taken each time.
    """

    def __init__(
        self,
        manifest: Manifest,
        job: Job,
        tokenizer: Tokenizer,
        sample: float | None,
        block_size: int,
    ) -> None:
        self._rows = RowPreparer(job, tokenizer, replace(manifest, max_model_len=_NO_LIMIT))
        self._manifest = manifest
        self._prompts = make_prompt_builder(job, chat=manifest.chat)
        self._fitter = Fitter(tokenizer, manifest.max_model_len, job.plan.over_length)
        self._sample = sample
        self._block_size = block_size

    def split(self, number: int) -> Iterator[RowSigns]:
        """The signs of a split, batch by batch. Raises InputError if the file is damaged."""
        manifest, first = self._manifest, 0
        split = manifest.splits[number]
        for batch in read_split(split, manifest.format, manifest.arrow_input_type()):
            if batch.records:
                yield self.sign(batch, number, first)
                first += len(batch.records)

    def head(self, number: int, rows: int) -> tuple[list[RowSigns], bool]:
        """The signs of a split's first rows, and whether these are all of its rows."""
        manifest, first = self._manifest, 0
        split = manifest.splits[number]
        found: list[RowSigns] = []
        for batch in read_split(split, manifest.format, manifest.arrow_input_type()):
            if not batch.records:
                continue
            if first >= rows:
                return found, False
            wanted = np.arange(len(batch.records)) < rows - first
            found.append(self.sign(_only(batch, wanted), number, first))
            if not wanted.all():
                return found, False
            first += len(batch.records)
        return found, True

    def sign(self, batch: RowBatch, split: int, first: int) -> RowSigns:
        """The signs of a batch that begins with row `first` of a split."""
        taken = self._taken(split, first, len(batch.records))
        drafts = iter(self._rows.prepare(_only(batch, taken)))
        rows = [self._sign(next(drafts)) if take else _UNSEEN for take in taken.tolist()]
        lengths = np.array([len(row.token_ids) for row in rows], dtype=np.int64)
        flat = [token for row in rows for token in row.token_ids]
        return make_signs(
            ids=[row.id for row in rows],
            codes=[row.code for row in rows],
            full=np.array([row.full for row in rows], dtype=np.int32),
            token_ids=np.array(flat, dtype=np.int32),
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            max_tokens=[row.max_tokens for row in rows],
            sampling=with_media([row.sampling for row in rows], [row.extras for row in rows]),
            media_tokens=np.array([row.media_tokens for row in rows], dtype=np.int32),
            scripts=self._scripts(batch, rows),
            block_size=self._block_size,
            extras=[row.extras for row in rows],
        )

    def token_ids(self, number: int, index: int) -> list[int]:
        """The prompt of row `index` of a split; the split is read again up to there."""
        manifest = self._manifest
        split = manifest.splits[number]
        for batch in read_split(split, manifest.format, manifest.arrow_input_type()):
            if index < len(batch.records):
                return self._prompt_of(batch, index)
            index -= len(batch.records)
        return []

    def _prompt_of(self, batch: RowBatch, index: int) -> list[int]:
        alone = np.arange(len(batch.records)) == index
        (draft,) = self._rows.prepare(_only(batch, alone))
        return self._sign(draft).token_ids

    def _taken(self, split: int, first: int, rows: int) -> npt.NDArray[np.bool_]:
        if self._sample is None:
            return np.ones(rows, dtype=np.bool_)
        place = np.arange(first, first + rows, dtype=np.uint64) + np.uint64(split << 36)
        mixed = (place + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(32)
        return mixed < np.uint64(int(self._sample * float(1 << 64)))

    def _sign(self, draft: Any) -> _Row:
        """A draft, cut or rejected as preparing it within the limit would."""
        if draft.problem:
            return _Row(draft.id, draft.problem[0], NOT_COUNTED, [], 0, draft.sampling, None)
        full = len(draft.token_ids) + draft.media_tokens
        try:
            ids, max_tokens, _ = self._fitter.fit(
                draft.prompt, draft.token_ids, draft.max_tokens, shortest_answer(draft.sampling),
                draft.media_tokens,
            )  # fmt: skip
        except RowError as error:
            return _Row(draft.id, error.code, full, [], 0, draft.sampling, None)
        row = _Row(draft.id, None, full, ids, max_tokens, draft.sampling, draft.prompt)
        return replace(row, extras=draft.extras, media_tokens=draft.media_tokens)

    def _scripts(self, batch: RowBatch, rows: list[_Row]) -> npt.NDArray[np.int8]:
        scripts = np.full(len(rows), -1, dtype=np.int8)
        for index in range(0, len(rows), _SCRIPT_EVERY):
            row, record = rows[index], batch.records[index]
            if row.code is None and record is not None:
                scripts[index] = main_script(self._prompts.own_text(record, row.prompt))
        return scripts


@dataclass(frozen=True, slots=True)
class _Row:
    id: str | None
    code: str | None
    full: int
    token_ids: list[int]
    max_tokens: int
    sampling: str
    prompt: Any
    extras: str | None = None
    media_tokens: int = 0


_UNSEEN = _Row(None, NOT_TAKEN, NOT_COUNTED, [], 0, "{}", None)


def _only(batch: RowBatch, taken: npt.NDArray[np.bool_]) -> RowBatch:
    """The records of some rows; what the output keeps of them is not asked for here."""
    if taken.all():
        return batch
    kept = np.flatnonzero(taken).tolist()
    problems = {new: batch.problems[old] for new, old in enumerate(kept) if old in batch.problems}
    records = [batch.records[index] for index in kept]
    return RowBatch(
        records,
        batch.kept,
        [batch.lines[index] for index in kept],
        problems,
        paths=[batch.paths[index] for index in kept],
    )


def sign_splits(signer: Signer, splits: int) -> Signs:
    """The number of the split and the signs of its rows, for all, made in this process."""
    for number in range(splits):
        for signs in signer.split(number):
            yield number, signs
