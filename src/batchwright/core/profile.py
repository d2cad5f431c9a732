"""How long the work is: what `profile` finds in the real data, and how it is stored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from batchwright.core.workload import NO_LENGTHS, LengthHistogram

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class PrefixLevel:
    """Shared prefixes down to one depth.

    Attributes:
        depth_tokens: how many tokens from the start of the prompt; None for any depth.
        distinct: different block-aligned prefixes that two or more rows have: those of exactly
            this depth in whole blocks, or of any depth where `depth_tokens` is None.
        working_set_tokens: tokens that keeping all of them down to this depth takes.
    """

    depth_tokens: int | None
    distinct: int
    working_set_tokens: int


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """One large shared prefix.

    Attributes:
        tokens: its length, whole blocks.
        rows: how many rows begin with it.
        row: one of them.
        text: its beginning, decoded; empty when nobody could decode it.
    """

    tokens: int
    rows: int
    row: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class CachePoint:
    """Share of prompt tokens that a prefix cache of some size saves, in two orders."""

    cache_tokens: int
    file_order: float
    best_order: float


@dataclass(frozen=True, slots=True)
class PrefixProfile:
    """What the rows have in common at their beginnings, in whole engine blocks.

    Attributes:
        block_size: tokens of an engine block.
        shareable_share: share of all prompt tokens that lie in blocks of an earlier row's prefix.
        working_set_tokens: tokens of all distinct prefix blocks that two or more rows have.
        cache_tokens: size of the prefix cache that the hit rates are for; None if unbounded.
        hit_rate_file_order: share of prompt tokens found in that cache, rows in file order.
        hit_rate_best_order: the same when rows that share stand together. Both may lie a little
            below `shareable_share`: an engine computes the last token of a prompt in any case.
        curve: the two rates for other sizes of the cache, ascending.
        levels: the working set down to each depth.
        top: the few largest shared prefixes.
        sampled_share: share of the single blocks that were followed; 1 when all were.
    """

    block_size: int
    shareable_share: float
    working_set_tokens: int
    cache_tokens: int | None
    hit_rate_file_order: float
    hit_rate_best_order: float
    curve: tuple[CachePoint, ...] = ()
    levels: tuple[PrefixLevel, ...] = ()
    top: tuple[SharedPrefix, ...] = ()
    sampled_share: float = 1.0

    def at(self, cache_tokens: int) -> PrefixProfile:
        """The same for a cache of another size: its rates by the next smaller size of `curve`."""
        smaller = [point for point in self.curve if point.cache_tokens <= cache_tokens]
        return replace(
            self,
            cache_tokens=cache_tokens,
            hit_rate_file_order=smaller[-1].file_order if smaller else 0.0,
            hit_rate_best_order=smaller[-1].best_order if smaller else 0.0,
        )

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "block_size": self.block_size,
            "shareable_share": self.shareable_share,
            "working_set_tokens": self.working_set_tokens,
            "cache_tokens": self.cache_tokens,
            "hit_rate_file_order": self.hit_rate_file_order,
            "hit_rate_best_order": self.hit_rate_best_order,
            "curve": [
                {
                    "cache_tokens": point.cache_tokens,
                    "file_order": point.file_order,
                    "best_order": point.best_order,
                }
                for point in self.curve
            ],
            "levels": [
                {
                    "depth_tokens": level.depth_tokens,
                    "distinct": level.distinct,
                    "working_set_tokens": level.working_set_tokens,
                }
                for level in self.levels
            ],
            "top": [
                {"tokens": one.tokens, "rows": one.rows, "row": one.row, "text": one.text}
                for one in self.top
            ],
            "sampled_share": self.sampled_share,
        }


@dataclass(frozen=True, slots=True)
class Sampled:
    """How far a quick look can be trusted.

    Attributes:
        share: share of the rows asked for.
        rows_read: rows that were looked at.
        rows: rows there are.
        p50: 95 % interval of the median prompt length, in tokens.
        p99: the same of the 99th percentile.
        total: the same of the prompt tokens of *all* rows.
        words: all of it in a sentence or two.
    """

    share: float
    rows_read: int
    rows: int
    p50: tuple[int, int]
    p99: tuple[int, int]
    total: tuple[int, int]
    words: str

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "share": self.share,
            "rows_read": self.rows_read,
            "p50": list(self.p50),
            "p99": list(self.p99),
            "total": list(self.total),
            "words": self.words,
        }


@dataclass(frozen=True, slots=True)
class LengthProfile:
    """What `profile` found.

    All counts but `rows` are of the rows looked at: all of them, unless `sampled` is set.

    Attributes:
        rows: rows of the input.
        valid: rows that will run.
        rejected: code to number of rows that will not.
        prompts: prompt tokens of the rows that will run, after truncation.
        max_tokens: the largest output cap of any row.
        over_limit: rows whose prompt leaves no room for an answer within `max_model_len`.
        over_context: the same for the model's own context; None if that is not known.
        duplicate_rows: rows that ask exactly what an earlier row asks (tokens, sampling, cap).
        duplicate_tokens: their prompt tokens.
        longest: (row, id, tokens before truncation) of the longest rows, those over the limit
            included, longest first.
        scripts: main script of a row's text to the share of rows; empty if not looked at.
        prefix: what rows share at their beginnings.
        exact: False when the lengths are estimates, for want of the model's tokenizer.
        sampled: how far it can be trusted, if only a sample was read.
        caps: output caps of the rows that will run.
        outputs: output tokens of the answers of the job's pilot, if it has had one.
    """

    rows: int
    valid: int
    rejected: dict[str, int]
    prompts: LengthHistogram
    max_tokens: int
    over_limit: int
    over_context: int | None
    duplicate_rows: int
    duplicate_tokens: int
    longest: tuple[tuple[int, str | None, int], ...]
    scripts: dict[str, float]
    prefix: PrefixProfile
    exact: bool = True
    sampled: Sampled | None = None
    caps: LengthHistogram = NO_LENGTHS
    outputs: LengthHistogram | None = None

    def as_json(self) -> dict[str, Any]:
        """One object, as `--json` prints it."""
        return {
            "rows": self.rows,
            "valid": self.valid,
            "rejected": dict(self.rejected),
            "prompt_tokens": length_figures(self.prompts),
            "max_tokens": self.max_tokens,
            "output_caps": length_figures(self.caps),
            "output_tokens": length_figures(self.outputs) if self.outputs else None,
            "over_limit": self.over_limit,
            "over_context": self.over_context,
            "duplicates": {
                "rows": self.duplicate_rows,
                "share": self.duplicate_rows / self.valid if self.valid else 0.0,
                "tokens": self.duplicate_tokens,
            },
            "longest": [
                {"row": row, "id": id_, "tokens": tokens} for row, id_, tokens in self.longest
            ],
            "scripts": dict(self.scripts),
            "prefix": self.prefix.as_json(),
            "exact": self.exact,
            "sampled": self.sampled.as_json() if self.sampled else None,
        }


def length_figures(lengths: LengthHistogram) -> dict[str, Any]:
    """Percentiles (the smallest length that the share does not exceed), mean, max and total."""
    figures: dict[str, Any] = {
        f"p{percent:g}": lengths.quantile(percent / 100) for percent in PERCENTILES
    }
    return {**figures, "mean": lengths.mean, "max": lengths.longest, "total": lengths.total}
