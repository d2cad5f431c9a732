"""The 80 % interval is honest: it holds the true time in 70 to 90 of 100 simulated jobs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.pilot.simulated import Engine, classification, mixed, summaries, trial


@pytest.mark.parametrize("make_job", [classification, summaries, mixed])
def test_the_interval_holds_the_truth_as_often_as_it_says(make_job: Any) -> None:
    held, errors = 0, []
    for seed in range(100):
        report, truth = trial(make_job, Engine(), seed)
        held += report.hours.low <= truth <= report.hours.high
        errors.append(report.hours.estimate / truth - 1)
    print(f"{make_job.__name__}: {held} of 100")
    assert 70 <= held <= 90
    assert abs(float(np.mean(errors))) < 0.015
    assert float(np.std(errors)) < 0.05


@pytest.mark.parametrize("make_job", [classification, summaries, mixed])
def test_a_pilot_whose_rows_count_is_right_about_the_rest(make_job: Any) -> None:
    errors = []
    for seed in range(5):
        report, truth = trial(make_job, Engine(), seed, rows=8_000, kept=True)
        assert report.rows_left == 7_000
        assert report.hours_left.estimate < report.hours.estimate
        errors.append(report.hours.estimate / truth - 1)
    assert abs(float(np.mean(errors))) < 0.05


@pytest.mark.parametrize("places", [8, 64, 1_024])
def test_few_places_and_more_places_than_the_pilot_has_rows(places: int) -> None:
    """With 1,024 places the engine is never full in the pilot: the fit must reach beyond it."""
    errors = []
    for seed in range(5):
        report, truth = trial(summaries, Engine(max_num_seqs=places), seed, rows=10_000)
        errors.append(report.hours.estimate / truth - 1)
    assert abs(float(np.mean(errors))) < 0.06
