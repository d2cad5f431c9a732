from __future__ import annotations

import numpy as np
import pytest

from batchwright.pilot.sample import BANDS, choose_rows, weigh
from batchwright.pilot.totals import Strata
from tests.unit.pilot.simulated import drawn


def test_the_sample_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    lengths = np.random.default_rng(0).integers(1, 500, 5_000)
    one, two = drawn(lengths, 300, 7), drawn(lengths, 300, 7)
    assert (one.rows == two.rows).all()
    assert (one.rows != drawn(lengths, 300, 8).rows).any()


def test_every_band_and_the_longest_rows_are_in_it() -> None:
    lengths = np.random.default_rng(0).permutation(10_000)
    sample = drawn(lengths, 1_000, 0)
    assert len(np.unique(sample.strata)) == BANDS + 1
    assert set(np.argsort(lengths)[-20:]) <= set(sample.rows)
    assert (sample.weights[lengths[sample.rows] >= 9_980] == 1).all()
    taken = np.bincount(sample.strata)
    assert taken[:-1].min() == 49
    assert taken[-1] == 20


def test_the_weighted_mean_is_near_the_true_one() -> None:
    lengths = np.rint(np.exp(np.random.default_rng(3).normal(5, 1.5, 20_000))).astype(int)
    means = []
    for seed in range(40):
        sample = drawn(lengths, 1_000, seed)
        means.append(sample.weights @ lengths[sample.rows] / sample.weights.sum())
    assert np.mean(means) == pytest.approx(lengths.mean(), rel=0.02)
    assert np.std(means) < 0.05 * lengths.mean()  # 0.085 for a plain sample


@pytest.mark.parametrize("wanted", [10, 11, 10_000])
def test_a_small_job_is_taken_whole(wanted: int) -> None:
    sample = drawn(np.arange(10), wanted, 0)
    assert sample.rows.tolist() == list(range(10))
    assert (sample.weights == 1).all()


def test_no_rows_are_no_sample() -> None:
    assert len(drawn(np.array([], dtype=int), 5, 0).rows) == 0
    assert len(drawn(np.arange(5), 0, 0).rows) == 0


def grouped(rows: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of groups in no order, with lengths that differ within a group and more between them."""
    generator = np.random.default_rng(1)
    groups = generator.permutation(np.repeat(np.arange(rows // size), size))
    lengths = generator.integers(100, 4_000, rows // size)[groups] + generator.integers(0, 50, rows)
    return lengths, groups


def test_rows_of_a_group_come_together() -> None:
    lengths, groups = grouped(8_000, 8)
    rows = choose_rows(lengths, 1_000, 0, groups)
    assert len(np.unique(rows)) == 1_000
    of_group = np.bincount(groups[rows], minlength=1_000)
    assert (of_group == 8).sum() > 100, "whole groups, but where a band or its share ends"
    alone = np.bincount(groups[choose_rows(lengths, 1_000, 0)], minlength=1_000)
    assert (alone == 8).sum() < 5


def test_groups_stand_for_all_rows_too() -> None:
    lengths, groups = grouped(20_000, 8)
    means = []
    for seed in range(40):
        sample = drawn(lengths, 1_000, seed, groups)
        assert sample.weights.sum() == pytest.approx(20_000)
        means.append(sample.weights @ lengths[sample.rows] / 20_000)
    assert np.mean(means) == pytest.approx(lengths.mean(), rel=0.01)
    assert np.std(means) < 0.03 * lengths.mean()


def test_a_band_without_a_row_is_spoken_for_by_its_neighbour() -> None:
    lengths = np.arange(1_000)
    rows = np.concatenate([np.arange(500, 540), [998, 999]])
    sample = weigh(lengths, rows, 100)
    assert sample.weights.sum() == pytest.approx(1_000)
    assert (sample.weights >= 1).all()


def test_the_interval_knows_that_rows_of_a_group_are_alike() -> None:
    lengths, groups = grouped(20_000, 8)
    generator = np.random.default_rng(5)
    of_group = generator.lognormal(4, 0.8, 2_500)[groups]
    values = of_group * generator.lognormal(0, 0.4, 20_000)
    truth = values.sum()
    held = {"as groups": 0, "as rows": 0}
    for seed in range(100):
        sample = drawn(lengths, 1_000, seed, groups)
        mine = values[sample.rows]
        for name, together in (("as groups", sample.groups), ("as rows", None)):
            strata = Strata(sample.strata, sample.weights, together)
            low, high = np.quantile(strata.draws(mine, 200, generator), (0.1, 0.9))
            held[name] += bool(low <= truth <= high)
    assert 70 <= held["as groups"] <= 90
    assert held["as rows"] < 60
