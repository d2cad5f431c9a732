"""A pilot as a page: what was measured, and what the whole job will take."""

from __future__ import annotations

from collections.abc import Sequence

from batchwright.core.pilot import Interval, PilotReport
from batchwright.pages.blocks import (
    Block,
    Drawing,
    Section,
    Table,
    Tiles,
    Words,
    make_page,
    source_name,
)
from batchwright.pages.drawings import Span, draw_spans
from batchwright.profile.histogram import svg_histogram

INTERVAL_WORDS = (
    "The mark is the estimate; in 80 of 100 jobs the truth lies within the bar. "
    "Each bar has its own scale, from 0 on."
)


def pilot_page(report: PilotReport, source: str | Sequence[str]) -> str:
    """The page of a pilot.

    Args:
        report: what it says of the whole job.
        source: path or paths of the data.
    """
    lead = [f"{report.rows:,} of {report.rows_total:,} rows were run on the real engine."]
    sections = [
        Section("The whole job", _whole(report)),
        Section("Measured", (_measured(report),)),
        Section("Answers", _answers(report)),
        Section("What it rests on", _assumptions(report)),
    ]
    return make_page(f"Pilot of {source_name(source)}", lead, sections)


def _whole(report: PilotReport) -> tuple[Block, ...]:
    rows = [
        _span("time", report.hours, "{:,.2f} h"),
        _span("still to do", report.hours_left, "{:,.2f} h"),
        _span("GPU time", report.gpu_hours, "{:,.2f} h"),
    ]
    cost = "price not given"
    if report.usd is not None:
        rows.append(_span("cost", report.usd, "${:,.2f}"))
        cost = f"${report.usd.estimate:,.2f}"
    tiles = (
        ("time", f"{report.hours.estimate:,.2f} h", ""),
        ("GPU time", f"{report.gpu_hours.estimate:,.2f} h", ""),
        ("cost", cost, ""),
        ("tail", f"{report.tail_s:,.1f} s", "when the last long rows run alone"),
    )
    drawing = Drawing(draw_spans(rows, "Intervals"))
    return Tiles(tiles), drawing, Words((INTERVAL_WORDS,))


def _span(label: str, interval: Interval, pattern: str) -> Span:
    scale = max(interval.high, interval.estimate, 1e-12) * 1.1
    low, mid, high = (interval.low, interval.estimate, interval.high)
    figure = f"{pattern.format(low)} – {pattern.format(high)}"
    return Span(label, low / scale, mid / scale, high / scale, figure)


def _measured(report: PilotReport) -> Table:
    rows = [
        ("start-up", f"{report.start_up_s:,.1f} s"),
        ("rows", f"{report.rows_per_s:,.1f}/s"),
        ("prompt tokens", f"{report.prompt_tokens_per_s:,.0f}/s"),
        ("output tokens", f"{report.output_tokens_per_s:,.0f}/s"),
        ("rows at a time", f"{report.running:,.0f}"),
        ("KV cache in use, at its peak", f"{report.kv_use:.0%}"),
        ("preemptions", f"{report.preemptions:,}"),
    ]
    if report.gpu_use is not None:
        rows.append(("GPUs busy, on average", f"{report.gpu_use:.0%}"))
    if report.gpu_memory_bytes is not None:
        rows.append(("memory of a GPU, at its peak", f"{report.gpu_memory_bytes / 1e9:,.1f} GB"))
    return Table(("what", "measured"), tuple(rows), frozenset({1}))


def _answers(report: PilotReport) -> tuple[Block, ...]:
    rows = (
        ("output tokens, p50", f"{report.output_p50:,}"),
        ("output tokens, p90", f"{report.output_p90:,}"),
        ("output tokens, p99", f"{report.output_p99:,}"),
        (f"cut by max_tokens ({report.max_tokens:,})", f"{report.cut_share:.1%}"),
        ("max_tokens that would cut 1 %", _better_cap(report)),
        ("failed", f"{report.failed_share:.2%}"),
        ("rejected", f"{report.rejected_share:.2%}"),
    )
    table = Table(("what", "measured"), rows, frozenset({1}))
    if not report.outputs.rows:
        return (table,)
    drawing = svg_histogram(report.outputs, "Output tokens per row", axis="output tokens")
    return Drawing(drawing), table


def _better_cap(report: PilotReport) -> str:
    cap = report.max_tokens_for_1_percent
    if cap is None:
        return "too many are cut to say"
    return f"{'about ' if report.max_tokens_extrapolated else ''}{cap:,}"


def _assumptions(report: PilotReport) -> tuple[Block, ...]:
    return (Words(report.assumptions, listed=True),) if report.assumptions else ()
