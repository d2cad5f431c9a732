"""Small drawings for pages, as SVG elements that take their colours from the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import escape

_WIDTH = 720
_LABEL, _FIGURE = 170, 150
_ROW = 28
_COLOURS = "abcde"


class Span(NamedTuple):
    """A row of a chart: from `low` to `high` of a scale from 0 to 1, with a mark at `mark`."""

    label: str
    low: float
    mark: float
    high: float
    figure: str


def draw_stack(parts: Sequence[tuple[str, float, str]], rest: tuple[str, float, str]) -> str:
    """One bar of several parts and what is left over, with a legend under it.

    Args:
        parts: name, size and figure of each, in any unit; at most five.
        rest: the same of what none of them takes; not drawn when its size is not above 0.
    """
    total = max(sum(size for _, size, _ in parts) + max(0.0, rest[1]), 1e-9)
    shown = [(*part, colour) for part, colour in zip(parts, _COLOURS, strict=False)]
    if rest[1] > 0:
        shown.append((*rest, "track"))
    lines = [_open(44 + _ROW * len(shown), "Memory of a card")]
    at = 0.0
    for index, (name, size, figure, colour) in enumerate(shown):
        width = _WIDTH * size / total
        lines.append(
            f'<rect class="{colour}" x="{at:.1f}" y="2" width="{width:.1f}" height="32">'
            f"<title>{escape(name)}: {escape(figure)}</title></rect>"
        )
        y = 48 + _ROW * index
        lines += [
            f'<rect class="{colour}" x="0" y="{y}" width="14" height="14"/>',
            _text("ink", 24, y + 12, name),
            _text("ink", 330, y + 12, figure, anchor="end"),
            _text("soft", 350, y + 12, f"{size / total:.1%}"),
        ]
        at += width
    return "\n".join([*lines, "</svg>"])


def draw_shares(rows: Sequence[tuple[str, float, str]], title: str) -> str:
    """A bar per row: label, share from 0 to 1, figure."""
    spans = [Span(label, 0.0, -1.0, share, figure) for label, share, figure in rows]
    return draw_spans(spans, title)


def draw_spans(rows: Sequence[Span], title: str) -> str:
    """A stretch of a scale per row, with a mark in it unless the mark is negative."""
    lines = [_open(_ROW * len(rows), title)]
    room = _WIDTH - _LABEL - _FIGURE - 16
    for index, row in enumerate(rows):
        y = _ROW * index
        low, high = (min(max(share, 0.0), 1.0) for share in (row.low, row.high))
        lines += [
            _text("ink", 0, y + 18, row.label),
            f'<rect class="track" x="{_LABEL}" y="{y + 6}" width="{room}" height="16" rx="3"/>',
            f'<rect class="a" x="{_LABEL + room * low:.1f}" y="{y + 6}" '
            f'width="{room * (high - low):.1f}" height="16" rx="3">'
            f"<title>{escape(row.label)}: {escape(row.figure)}</title></rect>",
        ]
        if row.mark >= 0:
            x = _LABEL + room * min(row.mark, 1.0)
            lines.append(f'<rect class="dot" x="{x - 1.5:.1f}" y="{y + 3}" width="3" height="22"/>')
        lines.append(_text("ink", _LABEL + room + 16, y + 18, row.figure))
    return "\n".join([*lines, "</svg>"])


def _open(height: int, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">'
    )


def _text(style: str, x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
