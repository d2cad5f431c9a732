"""All rows' signs to one profile, a batch at a time and in file order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from batchwright.core.profile import LengthProfile, Sampled
from batchwright.core.workload import LengthHistogram
from batchwright.profile.duplicates import DuplicateTally
from batchwright.profile.lengths import LengthTally, sampling_error
from batchwright.profile.prefixes import MAX_BLOCKS, PrefixTally
from batchwright.profile.scripts import SCRIPTS
from batchwright.profile.signs import NOT_TAKEN, OVER_LIMIT, RowSigns

_NONE: Mapping[int, str] = {}


class ProfileTally:
    """Everything that is counted. Memory is bounded: see the tallies it is made of.

    Args:
        block_size: tokens of an engine block.
        limit: tokens of prompt and answer together at most.
        context: the same for the model's own context, None if that is not known.
        max_blocks: distinct prefix blocks that are followed exactly.
    """

    def __init__(
        self, *, block_size: int, limit: int, context: int | None, max_blocks: int = MAX_BLOCKS
    ) -> None:
        self.rows = 0
        self._read = 0
        self._limit = limit
        self._context = context
        self._over_limit = 0
        self._over_context = 0
        self._caps = LengthTally(keep=0)
        self._rejected: Counter[str] = Counter()
        self._lengths = LengthTally()
        self._longest = LengthTally()
        self._duplicates = DuplicateTally()
        self._prefixes = PrefixTally(block_size, max_blocks)
        self._scripts = np.zeros(len(SCRIPTS), dtype=np.int64)

    def add(self, signs: RowSigns, rejected: Mapping[int, str] = _NONE) -> None:
        """Add the next rows; `rejected` are more of them that will not run: index to code."""
        codes = list(signs.codes)
        for index, code in rejected.items():
            codes[index] = code
        taken = np.array([code != NOT_TAKEN for code in codes], dtype=np.bool_)
        valid = np.array([code is None for code in codes], dtype=np.bool_)
        self._read += int(taken.sum())
        self._rejected.update(code for code in codes if code and code != NOT_TAKEN)
        self._count_long(signs)
        self._lengths.add(signs.tokens[valid])
        self._caps.add(signs.max_tokens[valid])
        self._duplicates.add(signs.digests[valid], signs.tokens[valid])
        self._add_prefixes(signs, valid)
        scripts = signs.scripts[signs.scripts >= 0]
        self._scripts += np.bincount(scripts, minlength=len(SCRIPTS))
        self.rows += len(codes)

    def _count_long(self, signs: RowSigns) -> None:
        counted = np.flatnonzero(signs.full >= 0)
        full = signs.full[counted]
        ids = [signs.ids[index] for index in counted.tolist()]
        self._longest.note_longest(full, counted + self.rows, ids)
        refused = np.array([code == "prompt_too_long" for code in signs.codes], dtype=np.bool_)
        runs = np.array([code is None for code in signs.codes], dtype=np.bool_)
        cut = runs & ((signs.full > signs.tokens) | (signs.full == OVER_LIMIT))
        self._over_limit += int((refused | cut).sum())
        if self._context is not None:
            self._over_context += int((full >= self._context).sum())
            # Where the limit is the context, a row that is over the one is over the other.
            if self._limit >= self._context:
                self._over_context += int((signs.full == OVER_LIMIT).sum())

    def _add_prefixes(self, signs: RowSigns, valid: npt.NDArray[np.bool_]) -> None:
        """Rows that will not run have no tokens; one with a repeated id has, and leaves a gap."""
        blocks = signs.blocks
        if not valid.all():
            keep = np.repeat(valid, np.diff(blocks.offsets))
            sizes = np.diff(blocks.offsets)[valid]
            offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
            blocks = type(blocks)(blocks.values[keep], offsets)
        self._prefixes.add(blocks, signs.tokens[valid])

    def profile(
        self, cache_tokens: int | None, *, share: float | None = None, exact: bool = True
    ) -> LengthProfile:
        """What has been found so far; `share` of the rows were asked for, None if all."""
        prompts, caps = self._lengths.histogram(), self._caps.histogram()
        looked_at = int(self._scripts.sum())
        return LengthProfile(
            rows=self.rows,
            valid=prompts.rows,
            rejected=dict(self._rejected.most_common()),
            prompts=prompts,
            max_tokens=caps.longest,
            over_limit=self._over_limit,
            over_context=None if self._context is None else self._over_context,
            duplicate_rows=self._duplicates.rows,
            duplicate_tokens=self._duplicates.tokens,
            longest=self._longest.longest,
            scripts={
                name: int(count) / looked_at
                for name, count in zip(SCRIPTS, self._scripts, strict=True)
                if count
            },
            prefix=self._prefixes.profile(cache_tokens),
            exact=exact,
            sampled=None if share is None else self._error(prompts, share),
            caps=caps,
        )

    def _error(self, prompts: LengthHistogram, share: float) -> Sampled:
        return sampling_error(prompts, share=share, rows_read=self._read, rows=self.rows)
