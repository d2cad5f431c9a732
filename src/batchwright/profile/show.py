"""A profile as plain lines for a terminal."""

from __future__ import annotations

from batchwright.core.profile import LengthProfile, PrefixProfile, length_figures
from batchwright.profile.histogram import text_histogram

_TEXT_WIDTH = 88
_LONGEST_SHOWN = 5


def profile_lines(profile: LengthProfile, *, histogram: bool = True) -> list[str]:
    """What was found, most important first; an empty line between the parts."""
    parts = [
        _lengths(profile),
        text_histogram(profile.prompts) if histogram else [],
        _rows(profile),
        _prefix(profile.prefix, profile.prompts.total),
        [profile.sampled.words] if profile.sampled else [],
    ]
    return [line for part in parts if part for line in [*part, ""]][:-1]


def _lengths(profile: LengthProfile) -> list[str]:
    figures = length_figures(profile.prompts)
    named = ("p50", "p90", "p95", "p99", "p99.9", "max")
    estimate = "" if profile.exact else " (estimates: the model's tokenizer is not known)"
    tokens = f"{figures['total']:,} in all, {figures['mean']:,.0f} per row{estimate}"
    read = f" ({profile.sampled.rows_read:,} of them read)" if profile.sampled else ""
    return [
        f"rows           {profile.rows:,}{read}: {profile.valid:,} will run",
        f"prompt tokens  {tokens}",
        "               " + " · ".join(f"{name} {figures[name]:,}" for name in named),
        f"output cap     {profile.max_tokens:,} tokens at most",
        *_outputs(profile),
    ]


def _outputs(profile: LengthProfile) -> list[str]:
    if profile.outputs is None:
        return []
    figures = length_figures(profile.outputs)
    named = " · ".join(f"{name} {figures[name]:,}" for name in ("p50", "p90", "p99"))
    return [f"output tokens  {named} by the job's pilot"]


def _rows(profile: LengthProfile) -> list[str]:
    lines = []
    for code, number in profile.rejected.items():
        lines.append(f"rejected       {number:,} × {code}")
    over = f"over limit     {profile.over_limit:,} rows" if profile.over_limit else ""
    if profile.over_context:
        over += f"; {profile.over_context:,} are too long for the model's own context"
    lines.append(over or "over limit     none")
    if profile.duplicate_rows:
        lines.append(
            f"duplicates     {profile.duplicate_rows:,} rows "
            f"({profile.duplicate_rows / max(profile.valid, 1):.1%}) ask exactly what an earlier "
            f"row asks: {profile.duplicate_tokens:,} tokens"
        )
    else:
        lines.append("duplicates     none")
    if profile.scripts:
        ordered = sorted(profile.scripts.items(), key=lambda item: -item[1])
        lines.append("scripts        " + " · ".join(f"{name} {x:.0%}" for name, x in ordered))
    longest = [
        f"{tokens:,} (row {row}{f', id {id_}' if id_ else ''})"
        for row, id_, tokens in profile.longest[:_LONGEST_SHOWN]
    ]
    if longest:
        lines.append("longest        " + " · ".join(longest))
    return lines


def _prefix(prefix: PrefixProfile, total: int) -> list[str]:
    if not prefix.working_set_tokens:
        return ["prefixes       no two rows begin with the same "
                f"{prefix.block_size} tokens: a prefix cache saves nothing"]  # fmt: skip
    cache = "a cache without bounds"
    if prefix.cache_tokens is not None:
        cache = f"a cache of {prefix.cache_tokens:,} tokens"
    lines = [
        f"prefixes       {prefix.shareable_share:.1%} of the prompt tokens "
        f"({round(prefix.shareable_share * total):,}) repeat an earlier row's beginning",
        f"working set    {prefix.working_set_tokens:,} tokens in "
        f"{prefix.levels[-1].distinct:,} blocks of {prefix.block_size}",
        f"hit rate       {prefix.hit_rate_file_order:.1%} in file order, "
        f"{prefix.hit_rate_best_order:.1%} in the best order ({cache})",
    ]
    for level in prefix.levels[:-1]:
        lines.append(
            f"  to {level.depth_tokens:>6,} tokens deep: working set {level.working_set_tokens:,} "
            f"tokens; shared prefixes of that depth: {level.distinct:,}"
        )
    for one in prefix.top:
        lines.append(f"  {one.tokens:,} tokens × {one.rows:,} rows: {_short(one.text)}")
    return lines


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _TEXT_WIDTH else f"{flat[: _TEXT_WIDTH - 1]}…"
