"""Charts that can be read on a phone: SVG elements, 340 units wide, with axes and a text of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from markupsafe import escape

from batchwright.core.report import Chart
from batchwright.core.series import Curve
from batchwright.core.workload import LengthHistogram
from batchwright.profile.histogram import Bin, log_bins

WIDTH, HEIGHT = 340, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 14, 26
_ROOM_X, _ROOM_Y = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

COLOURS = "abcde"

_TIME_STEPS_S = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
)  # fmt: skip


def draw_lines(chart: Chart, end_s: float = 0.0) -> str:
    """One line per curve over the time since the run began; a gap where nothing is known.

    Args:
        chart: what to draw.
        end_s: where the axis ends, for several charts to have the same; later where a curve goes on.
    """
    points = [point for curve in chart.curves for point in curve.points]
    end = max([end_s, *(at for at, _ in points)]) or 1.0
    top = _top_of(chart)
    parts = [
        _open(f"{chart.title}: {in_words(chart)}"),
        *_value_axis(top, lambda value: shown(value, chart.unit, top)),
        *_time_axis(end),
    ]
    for curve, colour in zip(chart.curves, COLOURS, strict=False):
        parts.append(_line(curve, colour, end, top))
    return "\n".join([*parts, "</svg>"])


def in_words(chart: Chart) -> str:
    """What the lines say, for those who cannot see them."""
    said = []
    for curve in chart.curves:
        values = curve.known
        top = max(values, default=0.0)
        figures = (shown(value, chart.unit, top) for value in (min(values), _mean(values), top))
        low, mean, high = figures
        name = "" if len(chart.curves) == 1 else f"{curve.name} "
        said.append(f"{name}{low} to {high} {_unit(chart.unit)}, on average {mean}")
    return "; ".join(said)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def _unit(unit: str) -> str:
    return "" if unit == "share" else unit


def shown(value: float, unit: str, top: float) -> str:
    """A value of an axis, as short as its neighbours allow."""
    if unit == "share":
        return f"{value:.0%}" if top >= 0.05 or not value else f"{value:.1%}"
    if not value:
        return "0"
    if top >= 10_000_000:
        return f"{value / 1e6:,.0f}M"
    if top >= 10_000:
        return f"{value / 1e3:,.0f}k"
    return f"{value:,.0f}" if top >= 8 else f"{value:,.1f}"


def _top_of(chart: Chart) -> float:
    highest = max((value for curve in chart.curves for value in curve.known), default=0.0)
    if chart.unit == "share":
        return 1.0 if highest > 0.25 or not highest else max(0.01, _nice(highest))
    return _nice(highest)


def _nice(value: float) -> float:
    """The next round number; its half is one too."""
    if value <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 2, 4, 6, 8, 10) if step * size >= value)


def _line(curve: Curve, colour: str, end: float, top: float) -> str:
    """A path that is lifted where nothing is known; a dot for a value without neighbours."""
    known = [None if value is None else _place(at, value, end, top) for at, value in curve.points]
    commands: list[str] = []
    dots: list[str] = []
    for index, place in enumerate(known):
        before = known[index - 1] if index else None
        after = known[index + 1] if index + 1 < len(known) else None
        if place is not None and before is None and after is None:
            dots.append(f'<circle class="{colour}" cx="{place[0]}" cy="{place[1]}" r="2"/>')
        elif place is not None:
            commands.append(f"{'M' if before is None else 'L'}{place[0]} {place[1]}")
    title = f"<title>{escape(curve.name)}</title>"
    path = f'<path class="line {colour}" d="{"".join(commands)}">{title}</path>'
    return "".join([path if commands else "", *dots])


def _place(at: float, value: float, end: float, top: float) -> tuple[str, str]:
    x = _LEFT + _ROOM_X * min(1.0, max(0.0, at / end))
    y = _TOP + _ROOM_Y * (1 - min(1.0, max(0.0, value / top)))
    return f"{x:.1f}", f"{y:.1f}"


def _value_axis(top: float, label: Callable[[float], str]) -> list[str]:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = _TOP + _ROOM_Y * (1 - share)
        parts.append(
            f'<path class="rule" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>'
            f'<text class="soft" x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">'
            f"{escape(label(top * share))}</text>"
        )
    return parts


def _time_axis(end_s: float) -> list[str]:
    days = -(-end_s // (5 * 86400)) * 86400
    step = next((one for one in _TIME_STEPS_S if end_s / one <= 5), days)
    parts = []
    for number in range(int(end_s // step) + 1):
        at = number * step
        x = _LEFT + _ROOM_X * at / end_s
        anchor = "end" if x > WIDTH - 24 else "middle"
        parts.append(
            f'<path class="rule" d="M{x:.1f} {HEIGHT - _BOTTOM}v4"/>'
            f'<text class="soft" x="{x:.1f}" y="{HEIGHT - _BOTTOM + 17}" text-anchor="{anchor}">'
            f"{_time_words(at, step)}</text>"
        )
    return parts


def _time_words(at_s: float, step_s: float) -> str:
    if step_s < 60:
        return f"{at_s:.0f} s"
    if step_s < 3600:
        return f"{at_s / 60:.0f} min"
    return f"{at_s / 3600:.0f} h"


def draw_columns(lengths: LengthHistogram, title: str, most: int = 20) -> str:
    """How many rows have how many tokens: columns of equal width on a logarithmic axis."""
    found = log_bins(lengths, most)
    highest = max((one.rows for one in found), default=1)
    top = _nice(highest)
    words = (
        f"half of the rows have up to {lengths.quantile(0.5):,} tokens, "
        f"99 % up to {lengths.quantile(0.99):,}, the longest {lengths.longest:,}"
    )
    step = _ROOM_X / max(1, len(found))
    parts = [
        _open(f"{title}: {words}"),
        *_value_axis(top, lambda rows: shown(rows, "rows", top)),
    ]
    every = max(1, -(-len(found) // 5))
    for index, one in enumerate(found):
        x = _LEFT + step * index
        parts.append(_column(one, x, step, top, lengths.rows))
        if index % every == 0:
            parts.append(
                f'<text class="soft" x="{x:.1f}" y="{HEIGHT - _BOTTOM + 17}" '
                f'text-anchor="middle">{one.low:,}</text>'
            )
    return "\n".join([*parts, "</svg>"])


def _column(one: Bin, x: float, step: float, top: float, rows: int) -> str:
    height = _ROOM_Y * one.rows / top
    return (
        f'<rect class="a" x="{x + 0.5:.1f}" y="{HEIGHT - _BOTTOM - height:.1f}" '
        f'width="{max(1.0, step - 1):.1f}" height="{height:.1f}"><title>{one.low:,} to '
        f"{one.high:,} tokens: {one.rows:,} rows, {one.rows / rows:.1%}</title></rect>"
    )


def draw_interval(low: float, high: float, mark: float, words: str) -> str:
    """A bar from `low` to `high` on a scale from 0, and a mark at what came of it."""
    scale = _ROOM_X / (1.1 * max(low, high, mark, 1e-12))
    x = _LEFT + scale * mark
    return (
        f'{_open(words, 44)}<path class="rule" d="M{_LEFT} 30H{WIDTH - _RIGHT}"/>'
        f'<rect class="a" x="{_LEFT + scale * low:.1f}" y="12" '
        f'width="{max(1.0, scale * (high - low)):.1f}" height="18"/>'
        f'<path class="mark" d="M{x:.1f} 6v30"/>'
        f'<text class="soft" x="{_LEFT - 5}" y="34" text-anchor="end">0</text></svg>'
    )


def _open(words: str, height: int = HEIGHT) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(words)}">'
    )
