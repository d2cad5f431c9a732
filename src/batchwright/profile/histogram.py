"""Lengths as a picture: lines for a terminal, or an SVG drawing."""

from __future__ import annotations

import math
from typing import NamedTuple

from batchwright.core.workload import LengthHistogram

BINS = 16

_BAR = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"


class Bin(NamedTuple):
    """Rows of `low` to `high` tokens, both included."""

    low: int
    high: int
    rows: int


def log_bins(lengths: LengthHistogram, bins: int = BINS) -> list[Bin]:
    """At most `bins` bins that are evenly wide on a logarithmic scale, from least to longest."""
    if not lengths.lengths:
        return []
    low, high = max(lengths.lengths[0], 1), lengths.longest + 1
    ratio = (high / low) ** (1 / bins)
    edges = sorted({math.floor(low * ratio**step + 0.5) for step in range(bins)} | {high})
    counts = [0] * (len(edges) - 1)
    place = 0
    for length, count in zip(lengths.lengths, lengths.counts, strict=True):
        while place + 1 < len(counts) and length >= edges[place + 1]:
            place += 1
        counts[place] += count
    first = min(lengths.lengths[0], edges[0])
    lows = [first, *edges[1:-1]]
    return [Bin(a, b - 1, count) for a, b, count in zip(lows, edges[1:], counts, strict=True)]


def text_histogram(lengths: LengthHistogram, bins: int = BINS) -> list[str]:
    """One line per bin: its tokens, a bar, the rows and their share."""
    found = log_bins(lengths, bins)
    most = max((one.rows for one in found), default=0)
    width = len(f"{lengths.longest:,}")
    count_width = len(f"{most:,}")
    return [
        f"{one.low:>{width},} – {one.high:>{width},}  {_bar(one.rows / most):<{_BAR}}  "
        f"{one.rows:>{count_width},}  {one.rows / lengths.rows:>6.1%}"
        for one in found
    ]


def _bar(share: float) -> str:
    """A bar of up to `_BAR` characters; the least there is for a share above 0."""
    eighths = max(round(share * _BAR * 8), 1) if share > 0 else 0
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


_WIDTH, _HEIGHT = 720, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 16, 44, 56

# Grey that can be read on white and on black; the drawing itself has no background.
_STYLE = (
    ".bw text{font:12px system-ui,sans-serif;fill:#767676}"
    ".bw .title{font-size:15px;font-weight:600}"
    ".bw .bar{fill:#4c8dd6}"
    ".bw .line{stroke:#767676;stroke-opacity:.35}"
)


def svg_histogram(
    lengths: LengthHistogram,
    title: str = "Prompt tokens per row",
    *,
    bins: int = 2 * BINS,
    axis: str = "prompt tokens",
) -> str:
    """The same as an SVG element: bars of equal width, tokens on a logarithmic axis.

    Args:
        lengths: tokens of each row.
        title: above the drawing.
        bins: at most so many bars.
        axis: what is counted.
    """
    found = log_bins(lengths, bins)
    most = max((one.rows for one in found), default=0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="bw" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'role="img" aria-label="{_escaped(title)}">',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="{_LEFT}" y="24">{_escaped(title)}</text>',
        *_rows_axis(most),
        *_bars(found, most, lengths.rows),
        *_tokens_axis(found, axis),
        "</svg>",
    ]
    return "\n".join(parts)


def _bars(found: list[Bin], most: int, rows: int) -> list[str]:
    step = (_WIDTH - _LEFT - _RIGHT) / max(len(found), 1)
    room = _HEIGHT - _TOP - _BOTTOM
    bars = []
    for index, one in enumerate(found):
        height = room * one.rows / most
        bars.append(
            f'<rect class="bar" x="{_LEFT + index * step + 1:.1f}" '
            f'y="{_HEIGHT - _BOTTOM - height:.1f}" width="{max(step - 2, 1):.1f}" '
            f'height="{height:.1f}"><title>{one.low:,} to {one.high:,} tokens: {one.rows:,} rows, '
            f"{one.rows / rows:.1%}</title></rect>"
        )
    return bars


def _rows_axis(most: int) -> list[str]:
    room = _HEIGHT - _TOP - _BOTTOM
    parts = []
    for value in sorted({0, most // 2, most}):
        y = _HEIGHT - _BOTTOM - (room * value / most if most else 0)
        parts.append(
            f'<line class="line" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,}</text>'
        )
    middle = _TOP + room / 2
    parts.append(
        f'<text x="16" y="{middle:.1f}" text-anchor="middle" '
        f'transform="rotate(-90 16 {middle:.1f})">rows</text>'
    )
    return parts


def _tokens_axis(found: list[Bin], axis: str) -> list[str]:
    step = (_WIDTH - _LEFT - _RIGHT) / max(len(found), 1)
    every = max(len(found) // 8, 1)
    base = _HEIGHT - _BOTTOM
    parts = [
        f'<text x="{_LEFT + index * step:.1f}" y="{base + 18}" text-anchor="middle">'
        f"{found[index].low:,}</text>"
        for index in range(0, len(found), every)
    ]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">'
        f"{_escaped(axis)} (logarithmic)</text>"
    )
    return parts


def _escaped(text: str) -> str:
    return (
        text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    )
