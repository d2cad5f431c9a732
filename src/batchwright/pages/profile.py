"""A profile as a page: lengths, duplicates, and what the rows have in common."""

from __future__ import annotations

from collections.abc import Sequence

from batchwright.core.profile import LengthProfile, PrefixProfile, length_figures
from batchwright.pages.blocks import (
    Block,
    Drawing,
    Quotes,
    Section,
    Table,
    Tiles,
    Words,
    make_page,
    source_name,
)
from batchwright.pages.drawings import draw_shares
from batchwright.profile.histogram import svg_histogram

_CURVE_ROWS = 12


def profile_page(profile: LengthProfile, source: str | Sequence[str]) -> str:
    """The page of a profile.

    Args:
        profile: what was found.
        source: path or paths of the data.
    """
    return make_page(f"Profile of {source_name(source)}", _lead(profile), profile_sections(profile))


def profile_sections(profile: LengthProfile) -> list[Section]:
    """The sections of a profile, for its own page and for a plan's."""
    return [
        Section("Work", _work(profile)),
        Section("Lengths", _lengths(profile)),
        Section("Rows that stand out", _rows(profile)),
        Section("Shared beginnings", _prefixes(profile.prefix, profile.prompts.total)),
    ]


def _lead(profile: LengthProfile) -> list[str]:
    lines = [f"{profile.rows:,} rows, of which {profile.valid:,} will run."]
    if not profile.exact:
        lines.append("Lengths are estimates: the model's tokenizer is not known.")
    if profile.sampled:
        lines.append(profile.sampled.words)
    return lines


def _work(profile: LengthProfile) -> tuple[Block, ...]:
    read = f"{profile.sampled.rows_read:,} of them read" if profile.sampled else ""
    prompts = profile.prompts
    tiles = [
        ("rows", f"{profile.rows:,}", read),
        ("will run", f"{profile.valid:,}", f"{sum(profile.rejected.values()):,} rejected"),
        ("prompt tokens", f"{prompts.total:,}", f"{prompts.mean:,.0f} per row"),
        ("output tokens", f"{profile.max_tokens:,}", "at most, per row"),
        ("exact duplicates", f"{_share(profile.duplicate_rows, profile.valid):.1%}", "of the rows"),
        ("shared beginnings", f"{profile.prefix.shareable_share:.1%}", "of the prompt tokens"),
    ]
    return (Tiles(tuple(tiles)),)


def _lengths(profile: LengthProfile) -> tuple[Block, ...]:
    if not profile.prompts.rows:
        return ()
    figures = length_figures(profile.prompts)
    named = [name for name in figures if name != "total"]
    row = tuple(f"{figures[name]:,.0f}" for name in named)
    table = Table(tuple(named), (row,), frozenset(range(len(named))))
    return Drawing(svg_histogram(profile.prompts)), table


def _rows(profile: LengthProfile) -> tuple[Block, ...]:
    facts = [(f"rejected: {code}", f"{number:,} rows") for code, number in profile.rejected.items()]
    facts.append(("over the limit", f"{profile.over_limit:,} rows"))
    if profile.over_context is not None:
        facts.append(("too long for the model's own context", f"{profile.over_context:,} rows"))
    facts.append(
        (
            "ask exactly what an earlier row asks",
            f"{profile.duplicate_rows:,} rows, {profile.duplicate_tokens:,} prompt tokens",
        )
    )
    by_share = sorted(profile.scripts.items(), key=lambda item: -item[1])
    if by_share:
        facts.append(("scripts", ", ".join(f"{name} {share:.0%}" for name, share in by_share)))
    longest = tuple(
        (f"{tokens:,}", f"{row:,}", "" if id_ is None else id_)
        for row, id_, tokens in profile.longest
    )
    blocks: list[Block] = [Table(("what", "how many"), tuple(facts))]
    if longest:
        blocks.append(Table(("tokens of the longest", "row", "id"), longest, frozenset({0, 1})))
    return tuple(blocks)


def _prefixes(prefix: PrefixProfile, total: int) -> tuple[Block, ...]:
    if not prefix.working_set_tokens:
        return (
            Words(
                (
                    f"No two rows begin with the same {prefix.block_size} tokens: a prefix cache "
                    "saves nothing.",
                )
            ),
        )
    cache = "a cache without bounds"
    if prefix.cache_tokens is not None:
        cache = f"a cache of {prefix.cache_tokens:,} tokens"
    found = f"{round(prefix.shareable_share * total):,} of {total:,} prompt tokens"
    words = (
        f"{found} repeat the beginning of an earlier row, in whole blocks of {prefix.block_size}. "
        f"Keeping all of it takes {prefix.working_set_tokens:,} tokens. Hit rates are for {cache}.",
    )
    shares = [
        ("can be shared", prefix.shareable_share),
        ("hits in file order", prefix.hit_rate_file_order),
        ("hits in the best order", prefix.hit_rate_best_order),
    ]
    drawing = draw_shares([(name, x, f"{x:.1%}") for name, x in shares], "Hit rates")
    quotes = tuple(
        (f"{one.tokens:,} tokens × {one.rows:,} rows, first in row {one.row:,}", one.text)
        for one in prefix.top
    )
    return (
        Words(words),
        Drawing(drawing),
        *_curve(prefix),
        *_levels(prefix),
        *([Quotes(quotes)] if quotes else []),
    )


def _curve(prefix: PrefixProfile) -> list[Block]:
    """The hit rates of other cache sizes, a few of them evenly over the curve."""
    every = max(1, -(-len(prefix.curve) // _CURVE_ROWS))
    points = prefix.curve[::-1][::every][::-1]
    rows = tuple(
        (f"{one.cache_tokens:,}", f"{one.file_order:.1%}", f"{one.best_order:.1%}")
        for one in points
    )
    head = ("cache of so many tokens", "hits in file order", "in the best order")
    return [Table(head, rows, frozenset({0, 1, 2}))] if rows else []


def _levels(prefix: PrefixProfile) -> list[Block]:
    rows = tuple(
        (
            "any" if one.depth_tokens is None else f"{one.depth_tokens:,}",
            f"{one.distinct:,}",
            f"{one.working_set_tokens:,}",
        )
        for one in prefix.levels
    )
    head = ("tokens deep", "shared prefixes", "working set in tokens")
    return [Table(head, rows, frozenset({0, 1, 2}))] if rows else []


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
