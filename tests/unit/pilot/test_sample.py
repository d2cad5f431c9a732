from __future__ import annotations

import numpy as np
import pytest

from batchwright.pilot.sample import BANDS, choose_rows


def test_the_sample_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    lengths = np.random.default_rng(0).integers(1, 500, 5_000)
    one, two = choose_rows(lengths, 300, 7), choose_rows(lengths, 300, 7)
    assert (one.rows == two.rows).all()
    assert (one.rows != choose_rows(lengths, 300, 8).rows).any()


def test_every_band_and_the_longest_rows_are_in_it() -> None:
    lengths = np.random.default_rng(0).permutation(10_000)
    sample = choose_rows(lengths, 1_000, 0)
    assert len(np.unique(sample.strata)) == BANDS + 1
    assert set(np.argsort(lengths)[-20:]) <= set(sample.rows)
    assert (sample.weights[lengths[sample.rows] >= 9_980] == 1).all()
    drawn = np.bincount(sample.strata)
    assert drawn[:-1].min() == 49
    assert drawn[-1] == 20


def test_the_weighted_mean_is_near_the_true_one() -> None:
    lengths = np.rint(np.exp(np.random.default_rng(3).normal(5, 1.5, 20_000))).astype(int)
    means = []
    for seed in range(40):
        sample = choose_rows(lengths, 1_000, seed)
        means.append(sample.weights @ lengths[sample.rows] / sample.weights.sum())
    assert np.mean(means) == pytest.approx(lengths.mean(), rel=0.02)
    assert np.std(means) < 0.05 * lengths.mean()  # 0.085 for a plain sample


@pytest.mark.parametrize("wanted", [10, 11, 10_000])
def test_a_small_job_is_taken_whole(wanted: int) -> None:
    sample = choose_rows(np.arange(10), wanted, 0)
    assert sample.rows.tolist() == list(range(10))
    assert (sample.weights == 1).all()


def test_no_rows_are_no_sample() -> None:
    assert len(choose_rows(np.array([], dtype=int), 5, 0).rows) == 0
    assert len(choose_rows(np.arange(5), 0, 0).rows) == 0
