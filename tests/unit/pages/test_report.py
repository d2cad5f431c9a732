"""A report's page holds what was found, leaves out what nobody knows, and needs nothing else."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from batchwright.core.failures import FailureGroup
from batchwright.core.findings import Change, Finding, Weight
from batchwright.core.losses import Balance, Loss
from batchwright.core.report import (
    ROW_BEGUN,
    Chart,
    Cost,
    Lengths,
    ReportFacts,
    SlowChunk,
    Times,
    WorkerFacts,
)
from batchwright.core.series import Curve
from batchwright.core.workload import LengthHistogram
from batchwright.pages.charts import draw_columns, draw_lines, in_words
from batchwright.pages.report import report_page
from tests.unit.pages.samples import EVIL, REPORT, make, read_page

FINDING = Finding(
    "kv_bound", f"The cache is full {EVIL}", Weight.LOSS, (("in use", "98 %"),), "Because.",
    "Do this.", (Change("engine.options.max_num_seqs", "256", "113"),), 0.12, "infer-1",
)  # fmt: skip

WORKER = WorkerFacts(
    "worker 1", "infer-node-1", "node", "NVIDIA H200", "vllm 0.32", 2.5, 61.0, 990, 99_000, "ended"
)

FACTS = ReportFacts(
    run_dir="/data/数据/run", source="s3://bucket/評価.jsonl", state="finished", task="generate",
    makes_text=True, began_at=1.8e9, ended_at=1.8e9 + 9000, rows=1_000, rows_expected=1_000,
    ok=990, failed=8, rejected=2, truncated=30, prompt_tokens=500_000, output_tokens=99_000,
    wasted_rows=3, busy_s=8_000.0, cost=Cost(2.5, 5.0, 2, True, 2.5), workers=(WORKER,),
    charts=(
        Chart("Rows", "rows/s", tuple(
            Curve(f"worker {n}", ((0.0, None), (60.0, 10.0 * n), (120.0, 20.0))) for n in (1, 2)
        )),
        Chart("KV cache in use", "share", (Curve("worker 1", ((0.0, 0.5), (60.0, 0.9))),)),
    ),
    times=(Times("row", 1.0, 2.0, 3.0, 4.0),),
    balance=Balance(18_000.0, 9_000.0, (Loss("limit of the hardware", 9_000.0), Loss("start-up", 9_000.0))),
    lengths=Lengths(LengthHistogram((100, 900), (890, 100)), LengthHistogram((9, 200), (600, 390)), 990, 5_000),
    failures=(FailureGroup("failed", "engine_refused", "#", 8, (17,), EVIL, "行 17: do that"),),
    slow_chunks=(SlowChunk("chunk-0-000001", "worker 1", 100, 31.0, 9_000),),
    slow_rows=((17, 4.0),), plan=make(), pilot=REPORT, settings={"model.name": EVIL},
    engine_options={"dtype": "auto"}, versions={"batchwright": "0.1.0"},
)  # fmt: skip

NOTHING = ReportFacts(
    run_dir="run", source="in.jsonl", state="running", task="embed", makes_text=False, began_at=0.0,
    ended_at=0.0, rows=0, rows_expected=0, ok=0, failed=0, rejected=0, truncated=0,
    prompt_tokens=0, output_tokens=0, wasted_rows=0, busy_s=0.0, cost=Cost(0.0, 0.0, 1, False, None),
)  # fmt: skip


def headings(html: str) -> list[str]:
    return [str(one.text) for one in read_page(html).all("h2")]


def test_everything_that_is_known_is_on_the_page() -> None:
    html = report_page(FACTS, [FINDING])
    assert headings(html) == [
        "What to change", "Rows", "Rows without an answer", "Over time",
        "Where the time of the engines went", "Promised and measured", "How long rows took",
        "Lengths", "Workers", "Plan", "Settings", "Versions",
    ]  # fmt: skip
    text = read_page(html).text
    for wanted in (
        "engine.options.max_num_seqs", "about 12% of the time", "cost time", "$12.50", "50%",
        "行 17", "数据", "chunk-0-000001", "4.0 s", "kv_bound", "60.0 min (48.0 min to 90.0 min)",
    ):  # fmt: skip
        assert wanted in text, wanted


def test_nothing_on_the_page_comes_from_elsewhere_or_is_taken_for_markup() -> None:
    html = report_page(FACTS, [FINDING])
    without_names = html.replace('"http://www.w3.org/2000/svg"', "").replace(
        '"http://www.w3.org/1999/xhtml"', ""
    )
    assert not re.search(
        r"(?i)https?:|//cdn|@import|url\(|<script|<link|<img|<iframe", without_names
    )
    assert "&lt;script&gt;" in html


def test_what_nobody_knows_is_left_out() -> None:
    html = report_page(NOTHING, None)
    assert headings(html) == ["Rows"]
    assert "No row has been read yet" in read_page(html).text


def test_first_tokens_stand_beside_the_rows_or_the_page_says_why_not() -> None:
    assert "was not told" in read_page(report_page(FACTS, None)).text
    told = (Times(ROW_BEGUN, 0.5, 0.6, 0.7, 0.8), *FACTS.times)
    text = read_page(report_page(replace(FACTS, times=told), None)).text
    assert ROW_BEGUN in text
    assert "was not told" not in text
    vectors = replace(FACTS, makes_text=False, pilot=None)
    assert "was not told" not in read_page(report_page(vectors, None)).text


def test_a_diagnosis_that_found_nothing_says_so() -> None:
    assert headings(report_page(NOTHING, []))[0] == "What to change"


def test_vectors_have_no_output_tokens() -> None:
    lengths = Lengths(LengthHistogram((9,), (5,)), rows_seen=5)
    facts = replace(FACTS, makes_text=False, lengths=lengths, output_tokens=0, pilot=None)
    text = read_page(report_page(facts, None)).text
    assert "cut at max_tokens" not in text
    assert "Output tokens per row" not in text
    assert "Prompt tokens per row" in text


def test_lengths_of_some_rows_say_of_how_many() -> None:
    facts = replace(FACTS, lengths=replace(FACTS.lengths, rows_seen=90))
    assert "Of 90 of 990 rows with an answer." in read_page(report_page(facts, None)).text


def test_lines_differ_by_more_than_colour_and_are_told_in_words() -> None:
    html = report_page(FACTS, None)
    assert "stroke-dasharray" in html
    assert 'aria-label="Rows: worker 1 10 to 20 rows/s, on average 15; worker 2 20 to 20' in html
    assert "worker 2" in read_page(html).text


def test_a_line_is_lifted_over_a_gap() -> None:
    points = ((0.0, 1.0), (1.0, 2.0), (2.0, None), (3.0, 2.0), (4.0, None))
    svg = draw_lines(Chart("x", "rows/s", (Curve("w", points),)))
    path = re.search(r'class="line a" d="([^"]*)"', svg)
    assert path is not None
    assert path[1].count("M") == 1
    assert svg.count("<circle") == 1, "a value without neighbours is a dot"


@pytest.mark.parametrize("seconds", [3.0, 50.0, 4_000.0, 90_000.0, 4_000_000.0])
@pytest.mark.parametrize("value", [0.004, 0.7, 12.0, 480.0, 66_000.0, 3e8])
def test_axes_of_any_size_have_few_short_labels(seconds: float, value: float) -> None:
    svg = draw_lines(Chart("x", "tokens/s", (Curve("w", ((0.0, 0.0), (seconds, value))),)))
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert 4 <= len(labels) <= 10
    assert max(map(len, labels)) <= 8


def test_a_chart_of_nothing_and_a_histogram_of_one() -> None:
    assert "<svg" in draw_lines(Chart("x", "share", (Curve("w", ((0.0, 0.0),)),)))
    assert in_words(Chart("x", "share", (Curve("w", ((0.0, 0.25),)),))) == (
        "25% to 25% , on average 25%"
    )
    assert draw_columns(LengthHistogram((7,), (3,)), "tokens").count("<rect") == 1


def test_a_plan_is_held_to_its_rate_for_the_rows_that_ran() -> None:
    """Within a run it is made on a few rows, so its hours are those of another number of rows."""
    plan = make()
    hours = replace(plan.prediction, hours=19.5, rows_per_s=0.25)
    text = read_page(report_page(replace(FACTS, plan=replace(plan, prediction=hours)), None)).text
    table = text[text.index("start-up apart") : text.index("How long rows took")]
    assert "66.5 min" in table, "998 rows at 0.25 a second"
    assert "2.22 h" in table, "8,000 s of work"
    assert "19.5" not in table
    unknown = read_page(report_page(replace(FACTS, busy_s=0.0), None)).text
    assert "start-up apart" not in unknown
