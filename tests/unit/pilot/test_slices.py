from __future__ import annotations

import numpy as np
import pytest

from batchwright.core.pilot import WorkSlice
from batchwright.pilot.rates import FEWEST_SLICES, fit_rates
from batchwright.pilot.slices import admitted_at, slices_of_rows


def test_a_row_gets_the_place_of_the_row_that_ended_first() -> None:
    assert admitted_at(np.array([5.0, 3.0, 9.0, 8.0]), 2).tolist() == [0, 0, 3, 5]
    assert admitted_at(np.array([5.0, 3.0]), 4).tolist() == [0, 0]


def test_two_rows_by_hand() -> None:
    """One place: 10 + 4 tokens, then 20 + 2; a step takes a second."""
    readings = np.column_stack([np.arange(1.0, 7), np.arange(1.0, 7)])
    slices = slices_of_rows(
        readings, np.array([4.0, 6.0]), np.array([10, 20]), np.array([4, 2]), places=1, most=3
    )
    assert slices == (
        WorkSlice(2.0, 10.0, 2.0, 0.0, 2.0, 10 * 2 + 2 * 2 / 2, True),
        WorkSlice(2.0, 0.0, 2.0, 1.0, 2.0, 10 * 4 + 4 * 4 / 2 - 22, True),
        WorkSlice(2.0, 20.0, 2.0, 1.0, 2.0, 20 * 2 + 2 * 2 / 2, False),
    )


def test_cached_prompt_tokens_are_no_work_and_a_row_in_one_step_makes_all_its_tokens() -> None:
    """A stub engine answers whole rows in a step."""
    slices = slices_of_rows(
        np.array([[0.5, 1.0], [1.0, 2.0]]), np.array([1.0, 2.0]), np.array([10, 10]),
        np.array([7, 9]), places=1, cached=np.array([0, 8]),
    )  # fmt: skip
    assert sum(one.output_tokens for one in slices) == pytest.approx(16)
    assert [one.prompt_tokens for one in slices] == pytest.approx([10, 2])


def test_nothing_done_is_no_slices() -> None:
    empty = np.array([], dtype=float)
    none = np.array([], dtype=int)
    assert slices_of_rows(empty.reshape(0, 2), empty, none, none, places=4) == ()


def slices_at(costs: list[float], count: int, seed: int = 0) -> list[WorkSlice]:
    generator = np.random.default_rng(seed)
    work = generator.uniform(0.2, 1.0, (count, 4)) * [50, 5_000, 1e6, 20_000]
    return [
        WorkSlice(float(x @ costs), x[3], x[1], 10, x[0], x[2], True) for x in work
    ]  # fmt: skip


@pytest.mark.parametrize(
    "costs", [[6e-3, 2e-5, 1e-8, 3e-5], [6e-3, 0.0, 0.0, 3e-5], [0.0, 2e-5, 0.0, 0.0]]
)
def test_exact_slices_give_the_exact_costs(costs: list[float]) -> None:
    rates = fit_rates(slices_at(costs, 40), 50, np.random.default_rng(0))
    assert rates.fitted
    for found, cost, unit in zip(rates.costs, costs, (6e-3, 2e-5, 1e-8, 3e-5), strict=True):
        assert found == pytest.approx(cost, abs=unit / 1000)
    assert (rates.draws >= 0).all()
    assert rates.draws.shape == (50, 4)


@pytest.mark.parametrize("count", [1, 2, FEWEST_SLICES - 1])
def test_few_slices_give_one_rate_and_doubt(count: int) -> None:
    slices = slices_at([6e-3, 2e-5, 1e-8, 3e-5], count)
    rates = fit_rates(slices, 200, np.random.default_rng(0))
    assert not rates.fitted
    explained = sum(
        rates.costs @ [x.steps, x.output_tokens, x.read_tokens, x.prompt_tokens] for x in slices
    )
    assert explained == pytest.approx(sum(x.seconds for x in slices))
    assert rates.draws[:, 1].std() > 0.01 * rates.costs[1]


def test_readings_between_two_steps_lose_no_time() -> None:
    """The engine is read more often than it steps: that is no time without work."""
    seconds = np.arange(1, 41) * 0.1
    steps = np.floor(seconds)  # a step a second, seen ten times each
    made = 8 * steps
    slices = slices_of_rows(
        np.column_stack([seconds, steps]), np.full(8, 4.0), np.full(8, 10), np.full(8, 4),
        places=8, counted=np.column_stack([20 * steps, made, np.zeros(40)]),
    )  # fmt: skip
    assert sum(one.seconds for one in slices) == pytest.approx(4.0)
    assert sum(one.output_tokens for one in slices) == pytest.approx(32)
    assert sum(one.prompt_tokens for one in slices) == pytest.approx(80)
