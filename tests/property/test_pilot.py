from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright.core.pilot import PilotMeasure
from batchwright.pilot.estimate import estimate
from batchwright.pilot.slices import slices_of_rows
from batchwright.pilot.totals import Strata, weighted_quantile
from tests.unit.pilot.simulated import drawn

lengths = st.lists(st.integers(0, 10**6), max_size=300).map(lambda x: np.array(x, dtype=np.int64))


@given(lengths, st.integers(0, 400), st.integers(0, 3))
def test_a_sample_has_the_rows_wanted_once_each_and_stands_for_all(
    values: np.ndarray, wanted: int, seed: int
) -> None:
    sample = drawn(values, wanted, seed)
    assert len(sample.rows) == min(wanted, len(values))
    assert (np.diff(sample.rows) > 0).all()
    assert (sample.weights >= 1).all()
    if len(sample.rows):
        assert sample.weights.sum() == pytest.approx(len(values))
        assert int(values[sample.rows].max()) == int(values.max()) or wanted < 50
    order = np.argsort(sample.strata, kind="stable")
    bounds = values[sample.rows][order]
    for stratum in np.unique(sample.strata)[1:]:
        ascending = sample.strata[order]
        assert bounds[ascending < stratum].max() <= bounds[ascending == stratum].min()


@given(lengths, st.floats(0.001, 1))
def test_with_equal_weights_the_quantile_is_numpys(values: np.ndarray, share: float) -> None:
    found = weighted_quantile(values, np.ones(len(values)), share)
    if len(values):
        assert found == np.quantile(values, share * (1 - 1e-12), method="inverted_cdf")
    else:
        assert found == 0


@given(lengths.filter(len), st.integers(1, 400))
def test_a_total_of_a_sample_is_never_less_than_what_was_seen(
    values: np.ndarray, wanted: int
) -> None:
    sample = drawn(values, wanted, 0)
    seen = values[sample.rows].astype(float)
    strata = Strata(sample.strata, sample.weights)
    draws = strata.draws(seen, 20, np.random.default_rng(0))
    assert np.isfinite(draws).all()
    assert (draws >= seen.sum() * (1 - 1e-9)).all()
    if wanted >= len(values):
        assert draws == pytest.approx(values.sum())
        assert strata.total(seen) == pytest.approx(values.sum())


rows = st.lists(st.tuples(st.integers(1, 3_000), st.integers(0, 500)), min_size=1, max_size=80)


@settings(deadline=None, max_examples=60)
@given(rows, st.integers(1, 100), st.floats(1e-4, 10), st.integers(1, 4), st.booleans())
def test_any_measure_gives_a_finite_report_with_its_estimate_inside(
    pairs: list[tuple[int, int]], places: int, step_s: float, replicas: int, kept: bool
) -> None:
    prompts, outputs = np.array(pairs).T
    sample = drawn(np.tile(prompts, 3), len(prompts), 0)
    mine = np.tile(prompts, 3)[sample.rows]
    ended = np.cumsum(np.maximum(1, outputs)).astype(float)
    readings = np.column_stack([np.unique(ended) * step_s, np.unique(ended)])
    slices = slices_of_rows(readings, ended, mine, outputs, places=places)
    assert sum(one.output_tokens for one in slices) == pytest.approx(outputs.sum())
    if not slices:
        return
    measure = PilotMeasure(
        rows=tuple(sample.rows.tolist()), prompts=tuple(mine.tolist()),
        outputs=tuple(outputs.tolist()), cut=(False,) * len(mine), failed=0, rejected_share=0.0,
        max_tokens=500, seconds=float(readings[-1, 0]), start_up_s=1.0, slices=slices,
        replicas=1, max_num_seqs=places,
    )  # fmt: skip
    total = 3 * len(prompts)
    report = estimate(
        measure, float(np.tile(prompts, 3).mean()), rows_total=total,
        rows_left=total - len(mine) if kept else total, sample=sample, replicas=replicas,
        gpus=replicas, usd_per_gpu_hour=1.0,
    )  # fmt: skip
    for found in (report.hours, report.hours_left, report.gpu_hours, report.usd):
        assert found is not None
        assert 0 <= found.low <= found.estimate <= found.high < np.inf
