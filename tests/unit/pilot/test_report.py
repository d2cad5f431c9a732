from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from batchwright.core.pilot import Interval, PilotMeasure, PilotReport, WorkSlice
from batchwright.pilot.caps import cap_for_one_percent
from batchwright.pilot.drift import drifted
from batchwright.pilot.estimate import estimate
from batchwright.pilot.forecast import running_rows
from batchwright.pilot.show import pilot_lines
from batchwright.pilot.totals import Strata, weighted_quantile
from tests.unit.pilot.simulated import drawn

ROWS = 10_000
LENGTHS = np.full(ROWS, 100)


def even(rows: int = 200, **changes: object) -> PilotMeasure:
    """Every row has 100 tokens in, 10 out; 10 rows at a time; a step of 0.1 s."""
    sample = drawn(LENGTHS, rows, 0)
    slices = [WorkSlice(1.0, 1_000.0, 100.0, 10.0, 10.0, 10_500.0, full=True)] * (rows // 10)
    measure = PilotMeasure(
        rows=tuple(sample.rows.tolist()), prompts=(100,) * rows, outputs=(10,) * rows,
        cut=(False,) * rows, failed=0, rejected_share=0.0, max_tokens=50, seconds=rows / 10,
        start_up_s=40.0, slices=tuple(slices), replicas=1, max_num_seqs=10,
    )  # fmt: skip
    return replace(measure, **changes)  # type: ignore[arg-type]


def reported(measure: PilotMeasure, **changes: object) -> PilotReport:
    arguments = {
        "rows_total": ROWS, "rows_left": ROWS, "replicas": 1, "gpus": 1,
        "sample": drawn(LENGTHS, 200, 0), **changes,
    }  # fmt: skip
    return estimate(measure, 100.0, **arguments)  # type: ignore[arg-type]


def test_an_even_job_by_hand() -> None:
    report = reported(even(), gpus=2, usd_per_gpu_hour=3.0)
    assert report.rows_per_s == pytest.approx(10, rel=1e-3)
    assert report.prompt_tokens_per_s == pytest.approx(1_000, rel=1e-3)
    assert report.output_tokens_per_s == pytest.approx(100, rel=1e-3)
    assert report.running == pytest.approx(10)
    assert report.hours.estimate * 3600 == pytest.approx(40 + 1_000, rel=0.01)
    assert report.gpu_hours.estimate == pytest.approx(2 * report.hours.estimate)
    assert report.usd is not None
    assert report.usd.high == pytest.approx(6 * report.hours.high)
    assert report.hours.low < report.hours.estimate < report.hours.high < 1.1 * report.hours.low
    assert report.output_p50 == report.output_p99 == report.max_tokens_for_1_percent == 10


def test_rows_that_count_are_not_done_again() -> None:
    report = reported(even(), rows_left=ROWS - 200)
    assert report.hours.estimate * 3600 == pytest.approx(40 + 1_000, rel=0.01)
    assert report.hours_left.estimate * 3600 == pytest.approx(980, rel=0.01)
    half = reported(even(), rows_left=(ROWS - 200) // 2)
    assert half.hours_left.estimate * 3600 == pytest.approx(490, rel=0.01)
    assert reported(even(), rows_left=0).hours_left == Interval(0.0, 0.0, 0.0)


def test_replicas_share_the_work_and_a_cache_saves_some() -> None:
    one, four = reported(even()), reported(even(), replicas=4)
    assert four.rows_per_s == pytest.approx(4 * one.rows_per_s)
    assert any("4 replicas" in line for line in four.assumptions)
    # Slices with and without prompts show that the prompts are half of the work.
    pair = [even().slices[0]._replace(seconds=1.5, prompt_tokens=2_000.0)]
    pair.append(pair[0]._replace(seconds=0.5, prompt_tokens=0.0))
    saved = reported(even(slices=tuple(pair * 10)), cached_share=0.5)
    assert saved.hours.estimate * 3600 == pytest.approx(40 + 750, rel=0.01)
    assert any("50% of the prompt tokens" in line for line in saved.assumptions)


def test_a_short_pilot_says_that_it_is_one() -> None:
    measure = even()
    short = reported(replace(measure, slices=measure.slices[:3]))
    assert any("too short" in line for line in short.assumptions)
    assert short.rows_per_s == pytest.approx(10, rel=1e-3)


def test_an_engine_that_was_never_full() -> None:
    slices = tuple(one._replace(full=False) for one in even().slices)
    measure = even(slices=slices, max_num_seqs=64)
    assert running_rows(measure) == 64
    assert running_rows(replace(measure, kv_use=0.5)) == 20
    assert any("never full" in line for line in reported(measure).assumptions)


def test_failed_rows_are_replaced_by_others_of_their_band() -> None:
    measure = even()
    part = replace(measure, rows=measure.rows[:150], prompts=measure.prompts[:150],
                   outputs=measure.outputs[:150], cut=measure.cut[:150], failed=50)  # fmt: skip
    report = reported(part)
    assert report.failed_share == 0.25
    assert report.rows_per_s == pytest.approx(10, rel=1e-3)


def test_what_cannot_be_estimated_is_refused() -> None:
    with pytest.raises(ValueError, match="no answers"):
        reported(replace(even(), slices=()))
    stranger = replace(even(), rows=(ROWS + 1, *even().rows[1:]))
    with pytest.raises(ValueError, match="not in its sample"):
        reported(stranger)


def test_the_report_is_json_and_lines() -> None:
    report = reported(even(gpu_use=0.9, gpu_memory_bytes=10**10), usd_per_gpu_hour=2.0)
    plain = json.loads(json.dumps(report.as_json()))
    assert plain["hours"]["low"] < plain["hours"]["high"]
    text = "\n".join(pilot_lines(report))
    assert "200 of 10,000 rows" in text
    assert "GPU busy 90%" in text
    assert "$" in text
    assert "would cut 1 %" in text
    without = "\n".join(pilot_lines(replace(report, usd=None, max_tokens_for_1_percent=None)))
    assert "price not given" in without
    assert "too many" in without
    about = "\n".join(pilot_lines(replace(report, max_tokens_extrapolated=True)))
    assert "about 10 would cut 1 %" in about


def test_a_cap_beyond_what_was_seen_is_drawn_out() -> None:
    whole = np.ceil(100 * (1 + np.random.default_rng(0).pareto(2.0, 20_000))).astype(np.int64)
    seen, cut = np.minimum(whole, 400), whole > 400
    cap, extrapolated = cap_for_one_percent(seen, cut, np.ones(20_000))
    assert extrapolated
    assert cap == pytest.approx(np.quantile(whole, 0.99), rel=0.1)
    assert cap_for_one_percent(whole, whole < 0, np.ones(20_000)) == (
        weighted_quantile(whole, np.ones(20_000), 0.99), False,
    )  # fmt: skip
    every = np.full(100, 50)
    assert cap_for_one_percent(every, every > 0, np.ones(100)) == (None, False)
    assert cap_for_one_percent(every[:0], every[:0] > 0, np.ones(0)) == (None, False)


def test_a_single_row_of_a_stratum_joins_its_neighbour() -> None:
    strata = Strata(np.array([0, 1, 1, 2]), np.array([10.0, 5.0, 5.0, 1.0]))
    assert strata.total(np.ones(4)) == pytest.approx(21)
    draws = strata.draws(np.array([1.0, 2.0, 3.0, 50.0]), 100, np.random.default_rng(0))
    assert draws.std() > 0
    alone = Strata(np.array([0, 1]), np.array([10.0, 5.0]))
    assert alone.total(np.ones(2)) == pytest.approx(15)


def test_drift_is_said_when_the_finished_part_leaves_the_interval() -> None:
    report = reported(even())
    assert drifted(report, 100, 4_000.0, ROWS) is None  # too early to say
    assert drifted(report, 2_000, 40 + 201.0, ROWS) is None
    slow = drifted(report, 2_000, 40 + 300.0, ROWS)
    assert slow is not None
    assert "slower" in slow
    assert "\n" not in slow
    fast = drifted(report, 2_000, 40 + 120.0, ROWS)
    assert fast is not None
    assert "faster" in fast
    assert drifted(report, ROWS, 9_999.0, ROWS) is None
