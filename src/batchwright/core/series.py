"""Readings over time: rates of what grows, means of what does not, thinned for a drawing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from batchwright.core.readings import Reading

Value = Callable[[Reading], float | None]
Point = tuple[float, float | None]

# A worker that was silent for so many times its usual interval was away: no line is drawn there.
GAP_INTERVALS = 6.0
LEAST_GAP_S = 10.0


@dataclass(frozen=True, slots=True)
class Curve:
    """Values over time, at ascending seconds; None is where nobody could tell."""

    name: str
    points: tuple[Point, ...]

    @property
    def known(self) -> list[float]:
        """The values that are known."""
        return [value for _, value in self.points if value is not None]


def rate_curve(
    readings: Sequence[Reading], value: Value, *, since: float, most: int, name: str = ""
) -> Curve:
    """Growth per second, over equal stretches of time.

    Args:
        readings: of one worker, oldest first.
        value: what grows; where it falls it was begun again, and where it is None nothing is said.
        since: Unix time that counts as 0.
        most: so many points at most.
        name: of the curve.
    """
    known = [(one.at, found) for one in readings if (found := value(one)) is not None]
    picked = _spread(known, most + 1)
    points: list[Point] = []
    gap_s = _gap_s([at for at, _ in picked])
    for (before, low), (at, high) in pairwise(picked):
        seconds = at - before
        grown = high - low if high >= low else high
        away = seconds > gap_s
        points.append((at - since, None if away or seconds <= 0 else grown / seconds))
    return Curve(name, tuple(points))


def gauge_curve(
    readings: Sequence[Reading], value: Value, *, since: float, most: int, name: str = ""
) -> Curve:
    """Mean values over equal stretches of time; arguments as those of `rate_curve`."""
    known = [(one.at, found) for one in readings if (found := value(one)) is not None]
    if not known:
        return Curve(name, ())
    gap_s = _gap_s([at for at, _ in known])
    first, last = known[0][0], known[-1][0]
    width = max((last - first) / most, 1e-9)
    groups: dict[int, list[tuple[float, float]]] = {}
    for at, found in known:
        groups.setdefault(min(most - 1, int((at - first) / width)), []).append((at, found))
    points: list[Point] = []
    before = first
    for group in groups.values():
        at = group[0][0] if len(groups) == len(known) else fmean(one for one, _ in group)
        if group[0][0] - before > gap_s:
            points.append((before - since + gap_s / 2, None))
        points.append((at - since, fmean(found for _, found in group)))
        before = group[-1][0]
    return Curve(name, tuple(points))


def _spread(known: list[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most so many of them, evenly over time; the first and the last among them."""
    if len(known) <= most:
        return known
    width = (known[-1][0] - known[0][0]) / (most - 1)
    kept = [known[0]]
    for one in known[1:-1]:
        if one[0] - kept[-1][0] >= width:
            kept.append(one)
    return [*kept[: most - 1], known[-1]]


def _gap_s(times: Sequence[float]) -> float:
    steps = [after - before for before, after in pairwise(times)]
    return max(LEAST_GAP_S, GAP_INTERVALS * median(steps)) if steps else LEAST_GAP_S


def total_curve(curves: Sequence[Curve], places: int, name: str) -> Curve:
    """The sum of rates: each holds from its point before up to its own."""
    spans = [
        (start, end, value)
        for curve in curves
        for (start, _), (end, value) in zip(curve.points, curve.points[1:], strict=False)
        if value is not None
    ]
    return spread_out(
        [(start, end, value * (end - start)) for start, end, value in spans], places, name
    )


def spread_out(spans: Sequence[tuple[float, float, float]], places: int, name: str) -> Curve:
    """Amounts that came evenly from a start to an end, as a rate over all of the time."""
    spans = [one for one in spans if one[1] > one[0]]
    if not spans:
        return Curve(name, ())
    first, last = min(one[0] for one in spans), max(one[1] for one in spans)
    width = (last - first) / places
    amounts = [0.0] * places
    for start, end, amount in spans:
        low = min(places - 1, int((start - first) / width))
        high = min(places - 1, int((end - first) / width))
        for place in range(low, high + 1):
            left = first + place * width
            overlap = min(end, left + width) - max(start, left)
            amounts[place] += amount * max(0.0, overlap) / (end - start)
    points = ((first + (n + 0.5) * width, amount / width) for n, amount in enumerate(amounts))
    return Curve(name, tuple(points))


def few(curves: Sequence[Curve], most: int, places: int) -> list[Curve]:
    """The curves, or where they are too many the lowest, middle and highest of them.

    Args:
        curves: of one value, of several workers.
        most: so many are drawn each by itself.
        places: of the lowest, middle and highest, over time.
    """
    shown = [one for one in curves if one.known]
    if len(shown) <= most:
        return shown
    first = min(one.points[0][0] for one in shown)
    last = max(one.points[-1][0] for one in shown)
    width = max((last - first) / places, 1e-9)
    groups: dict[int, list[float]] = {}
    for one in shown:
        for at, value in one.points:
            if value is not None:
                groups.setdefault(int((at - first) / width), []).append(value)
    spans = {
        first + (place + 0.5) * width: (min(values), median(values), max(values))
        for place, values in sorted(groups.items())
    }
    names = ("lowest", "middle", "highest")
    return [
        Curve(f"{name} of {len(shown)}", tuple((at, three[n]) for at, three in spans.items()))
        for n, name in enumerate(names)
    ]
