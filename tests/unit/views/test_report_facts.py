"""A report's facts are those of the run directory, of a run that is done, under way or new."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from batchwright.core import losses
from batchwright.ordering.retry import order_failed_rows
from batchwright.pipeline import report
from batchwright.rundir import layout
from batchwright.rundir.state import read_state
from batchwright.views.report import report_at_the_end
from batchwright.views.report_facts import covered_s, gather_report
from batchwright.views.report_rows import row_lengths
from tests.unit.pages.samples import REPORT, make
from tests.unit.rundir.small_runs import SmallRun, prompts, small_run
from tests.unit.small_reports import STARTED, answered_run, commit, leave_signs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    bad = ('{"id": "x", "prompt": 7}', '{"id": "y"')
    return answered_run(tmp_path_factory.mktemp("report"), bad=bad, plan__usd_per_gpu_hour=2.5)


def test_counts_time_and_cost(run: SmallRun) -> None:
    facts = gather_report(run.storage, run.manifest, run.job)
    assert (facts.rows, facts.ok, facts.failed, facts.rejected) == (42, 18, 2, 2)
    assert facts.state == "stopped"
    assert facts.began_at == STARTED
    assert facts.cost.hours == pytest.approx(101 / 3600), "the two overlap"
    assert facts.cost.card_hours == pytest.approx(200 / 3600)
    assert facts.cost.usd == pytest.approx(200 / 3600 * 2.5)
    assert [one.rows for one in facts.workers] == [10, 10]
    assert [one.start_up_s for one in facts.workers] == [20.0, 20.0]


def test_failures_come_with_examples(run: SmallRun) -> None:
    facts = gather_report(run.storage, run.manifest, run.job)
    found = {one.code: one for one in facts.failures}
    assert found["engine_refused"].count == 2
    assert found["engine_refused"].rows == (3, 4)
    assert found["engine_refused"].example == "不行 <b>3</b>"
    assert {one.status for one in facts.failures} == {"failed", "rejected"}
    assert sum(one.count for one in facts.failures if one.status == "rejected") == 2


def test_curves_and_balance_come_of_the_telemetry(run: SmallRun) -> None:
    facts = gather_report(run.storage, run.manifest, run.job)
    charts = {one.title: one for one in facts.charts}
    assert [curve.name for curve in charts["Rows"].curves] == ["worker 1", "worker 2"]
    assert charts["Rows"].curves[0].known == pytest.approx([1.0] * 40)
    assert max(charts["Rows, all workers"].curves[0].known) == pytest.approx(2.0)
    assert charts["GPUs busy"].curves[0].known == pytest.approx([0.9] * 41)
    assert charts["No prepared row at hand"].curves[0].known == pytest.approx([0.1] * 40)
    assert facts.balance is not None
    parts = {one.name: one.seconds for one in facts.balance.parts}
    assert sum(parts.values()) == pytest.approx(200.0)
    assert parts[losses.START_UP] == pytest.approx(40.0)
    assert parts[losses.STARVED] == pytest.approx(16.0)


def test_lengths_and_times_come_of_parts_and_receipts(run: SmallRun) -> None:
    facts = gather_report(run.storage, run.manifest, run.job)
    assert facts.lengths.rows_seen == 18
    assert facts.lengths.outputs.lengths == (1, 2, 3)
    assert facts.lengths.cached_tokens == 18
    assert facts.slow_rows[0] == (19, 20.0)
    first_tokens, rows, chunks = facts.times
    assert first_tokens.p50_s == pytest.approx(5.0, rel=0.2), "half of each row's time"
    assert first_tokens.longest_s == pytest.approx(10.0, rel=0.06)
    assert rows.p50_s == pytest.approx(10.0, rel=0.06)
    assert rows.longest_s == 20.0
    assert chunks.longest_s == 30.0


def test_a_part_that_is_gone_is_not_looked_at(tmp_path: Path) -> None:
    run = answered_run(tmp_path)
    receipts = list(read_state(run.storage).receipts.values())
    before = row_lengths(run.storage, receipts).rows_seen
    gone = next(one for one in receipts if one.ok)
    run.storage.delete(gone.file)
    assert row_lengths(run.storage, receipts).rows_seen == before - gone.ok


def test_a_plan_gives_the_share_of_the_limit(tmp_path: Path) -> None:
    run = answered_run(tmp_path)
    run.storage.put(layout.PLAN, orjson.dumps(make().as_json()))
    run.storage.put(layout.PILOT, orjson.dumps(REPORT.as_json()))
    facts = gather_report(run.storage, run.manifest, run.job)
    assert facts.plan == make()
    assert facts.pilot == REPORT
    assert facts.balance is not None
    assert facts.balance.share_of_limit is not None
    assert 0.0 < facts.balance.share_of_limit < 0.1
    assert facts.balance.parts[0].name == losses.LIMIT
    assert sum(one.seconds for one in facts.balance.parts) == pytest.approx(200.0)


def test_a_row_that_was_run_again_is_no_example(tmp_path: Path) -> None:
    run = answered_run(tmp_path, rows=20)
    commit(run, "infer-0", 1)
    order_failed_rows(run.storage, run.state(), 10, ())
    commit(run, "infer-0", 0, generation=1)
    facts = gather_report(run.storage, run.manifest, run.job)
    assert (facts.ok, facts.failed, facts.failures) == (20, 0, ())


def test_a_run_that_has_not_begun_has_a_report(tmp_path: Path) -> None:
    run = small_run(tmp_path, prompts(1))
    facts, place = report(run.storage.root)
    assert facts.balance is None
    assert facts.charts == ()
    assert place == run.storage.root / layout.REPORT
    assert "No row has been read yet" in Path(place).read_text()


def test_without_telemetry_the_chunks_tell_the_speed(tmp_path: Path) -> None:
    run = answered_run(tmp_path)
    for name in run.storage.names(layout.TELEMETRY):
        run.storage.delete(f"{layout.TELEMETRY}/{name}")
    facts = gather_report(run.storage, run.manifest, run.job)
    (chart,) = facts.charts
    assert chart.title == "Rows, by chunks"
    assert max(chart.curves[0].known) == pytest.approx(20 / 30)


def test_a_worker_that_lives_makes_the_run_a_running_one(tmp_path: Path) -> None:
    run = answered_run(tmp_path)
    leave_signs(run, "infer-2", started=4_000_000_000.0, ended=False)
    facts = gather_report(run.storage, run.manifest, run.job)
    assert facts.state == "running"


def test_the_page_can_be_written_elsewhere(run: SmallRun, tmp_path: Path) -> None:
    facts, place = report(run.storage.root, tmp_path / "deep" / "page.html")
    assert place == tmp_path / "deep" / "page.html"
    text = Path(place).read_text()
    assert "不行 &lt;b&gt;3&lt;/b&gt;" in text
    assert facts.rows == 42


def test_a_report_that_fails_does_not_fail_a_run_that_is_done(tmp_path: Path) -> None:
    run = answered_run(tmp_path)
    run.storage.put(layout.SUCCESS, b"")
    assert report_at_the_end(run.storage) is not None
    run.storage.put(layout.ORDER_DECISION, b'{"hit_rate_best": "many"}')
    assert report_at_the_end(run.storage) is None
    assert b"report_failed" in run.storage.read_log(layout.EVENTS)


def test_time_that_several_workers_share_counts_once() -> None:
    assert covered_s([(0.0, 10.0), (5.0, 12.0), (20.0, 21.0), (6.0, 7.0)]) == 13.0
    assert covered_s([]) == 0.0
