from __future__ import annotations

import statistics

import pytest

from batchwright.core.workload import LengthHistogram


@pytest.mark.parametrize("values", [[5], [7, 7, 7], [1, 2, 3, 400], [0, 10]])
def test_the_spread_is_the_deviation_over_the_mean(values: list[int]) -> None:
    spread = LengthHistogram.of(values).spread
    assert spread == pytest.approx(statistics.pstdev(values) / statistics.mean(values), abs=1e-6)


def test_no_tokens_have_no_spread() -> None:
    assert LengthHistogram().spread == 0
    assert LengthHistogram.of([0, 0]).spread == 0
