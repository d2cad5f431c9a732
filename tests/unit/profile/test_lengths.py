from __future__ import annotations

import numpy as np
import pytest

from batchwright.core.workload import LengthHistogram
from batchwright.profile.lengths import LengthTally, sampling_error


def test_percentiles_are_numpys() -> None:
    rng = np.random.default_rng(0)
    lengths = np.concatenate([rng.lognormal(5, 1.5, 5000).astype(np.int64), [70_000, 200_000]])
    tally = LengthTally()
    for part in np.array_split(lengths, 7):
        tally.add(part)
    for percent in (0, 1, 50, 90, 95, 99, 99.9, 99.99, 100):
        assert tally.percentile(percent) == np.percentile(lengths, percent, method="inverted_cdf")
    assert tally.histogram() == LengthHistogram.of(lengths.tolist())


def test_no_rows() -> None:
    tally = LengthTally()
    tally.add(np.zeros(0, dtype=np.int32))
    tally.note_longest(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64), [])
    assert tally.histogram().rows == 0
    assert tally.percentile(50) == 0
    assert tally.longest == ()


def test_the_longest_rows_come_first_and_the_earlier_of_two_equals() -> None:
    tally = LengthTally(keep=3)
    lengths = np.array([5, 9, 9, 1, 9, 7, 9])
    ids = ["a", None, "c", "d", "e", "f", "g"]
    tally.note_longest(lengths[:4], np.arange(4), ids[:4])
    tally.note_longest(lengths[4:], np.arange(4, 7), ids[4:])
    assert tally.longest == ((1, None, 9), (2, "c", 9), (4, "e", 9))


def test_the_stated_error_holds_the_truth_in_about_95_of_100_samples() -> None:
    rng = np.random.default_rng(3)
    lengths = rng.lognormal(5, 1, 20_000).astype(np.int64) + 1
    truth = LengthHistogram.of(lengths.tolist())
    held = {"p50": 0, "p99": 0, "total": 0}
    for _ in range(200):
        taken = lengths[rng.random(len(lengths)) < 0.1]
        sample = LengthHistogram.of(taken.tolist())
        error = sampling_error(sample, share=0.1, rows_read=len(taken), rows=len(lengths))
        held["p50"] += error.p50[0] <= truth.quantile(0.5) <= error.p50[1]
        held["p99"] += error.p99[0] <= truth.quantile(0.99) <= error.p99[1]
        held["total"] += error.total[0] <= truth.total <= error.total[1]
    assert all(number >= 180 for number in held.values()), held


@pytest.mark.parametrize("rows", [0, 3])
def test_an_empty_sample_says_so_without_breaking(rows: int) -> None:
    error = sampling_error(LengthHistogram(), share=0.1, rows_read=0, rows=rows)
    assert error.total == (0, 0)
    assert "0 of" in error.words
