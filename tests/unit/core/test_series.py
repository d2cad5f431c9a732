"""Rates, means and sums over time say what readings say, and gaps stay gaps."""

from __future__ import annotations

from itertools import pairwise

import pytest

from batchwright.core.latency import add_up, count_times, quantile_s
from batchwright.core.ports import EngineGauges
from batchwright.core.readings import Reading
from batchwright.core.series import Curve, few, gauge_curve, rate_curve, spread_out, total_curve


def at(seconds: float, rows: int, running: int = 8) -> Reading:
    return Reading(1000.0 + seconds, "w", rows=rows, engine=EngineGauges(running=running))


def rows_of(one: Reading) -> float:
    return one.rows


def running(one: Reading) -> float | None:
    return None if one.engine is None else one.engine.running


def test_a_rate_is_the_growth_between_two_readings() -> None:
    curve = rate_curve([at(0, 0), at(2, 100), at(4, 300)], rows_of, since=1000.0, most=50)
    assert curve.points == ((2.0, 50.0), (4.0, 100.0))


def test_thinned_rates_lose_no_row() -> None:
    readings = [at(2 * n, n * n) for n in range(1000)]
    curve = rate_curve(readings, rows_of, since=1000.0, most=50)
    assert len(curve.points) <= 50
    edges = [0.0, *(point for point, _ in curve.points)]
    widths = [after - before for before, after in pairwise(edges)]
    counted = sum(w * (rate or 0.0) for w, (_, rate) in zip(widths, curve.points, strict=True))
    assert counted == pytest.approx(999 * 999)


def test_what_was_begun_again_counts_from_zero() -> None:
    curve = rate_curve([at(0, 500), at(2, 40)], rows_of, since=1000.0, most=50)
    assert curve.points == ((2.0, 20.0),)


def test_a_worker_that_was_away_leaves_a_gap() -> None:
    readings = [at(0, 0), at(2, 2), at(4, 4), at(500, 6), at(502, 8)]
    rates = rate_curve(readings, rows_of, since=1000.0, most=50)
    assert [value for _, value in rates.points] == [1.0, 1.0, None, 1.0]
    gauges = gauge_curve(readings, running, since=1000.0, most=50)
    assert [value for _, value in gauges.points] == [8.0, None, 8.0]


def test_a_gauge_is_its_mean_over_each_stretch() -> None:
    readings = [at(n, 0, running=n % 2 * 10) for n in range(1000)]
    curve = gauge_curve(readings, running, since=1000.0, most=100)
    assert len(curve.points) <= 100
    assert all(value == pytest.approx(5.0) for _, value in curve.points)


def test_without_readings_there_is_no_curve() -> None:
    assert rate_curve([], rows_of, since=0.0, most=9).points == ()
    assert rate_curve([at(0, 5)], rows_of, since=0.0, most=9).points == ()
    assert gauge_curve([], running, since=0.0, most=9).points == ()
    assert spread_out([], 9, "x").points == ()


def test_the_sum_of_workers_that_were_there_at_other_times() -> None:
    first = Curve("a", ((0.0, 4.0), (10.0, 4.0), (20.0, 4.0)))
    second = Curve("b", ((10.0, None), (20.0, 6.0)))
    total = total_curve([first, second], 20, "all")
    assert [value for _, value in total.points] == pytest.approx([4.0] * 10 + [10.0] * 10)


def test_of_many_workers_the_lowest_middle_and_highest_are_drawn() -> None:
    curves = [Curve(str(n), ((0.0, n), (10.0, 2 * n))) for n in range(1, 10)]
    shown = few(curves, 5, 2)
    assert [curve.name for curve in shown] == ["lowest of 9", "middle of 9", "highest of 9"]
    assert [curve.points[0][1] for curve in shown] == [1, 5, 9]
    assert [curve.points[-1][1] for curve in shown] == [2, 10, 18]
    assert few(curves[:5], 5, 2) == curves[:5]


def test_quantiles_of_counted_times_are_off_by_little() -> None:
    times = [0.0001, *(0.01 * n for n in range(1, 1001))]
    counts = add_up([count_times(times[:300]), count_times(times[300:])])
    assert sum(counts.values()) == 1001
    assert quantile_s(counts, 0.5) == pytest.approx(5.0, rel=0.06)
    assert quantile_s(counts, 0.99) == pytest.approx(9.9, rel=0.06)
    assert quantile_s({}, 0.5) is None
