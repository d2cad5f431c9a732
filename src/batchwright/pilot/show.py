"""A pilot's report as plain lines for a terminal."""

from __future__ import annotations

from batchwright.core.pilot import Interval, PilotReport


def pilot_lines(report: PilotReport) -> list[str]:
    """What was measured, what it means for the whole job, and what that rests on."""
    return [
        *_measured(report),
        *_outputs(report),
        "",
        *_whole(report),
        *(f"assumes        {line}" for line in report.assumptions),
        *(f"plan           {line}" for line in report.plan_changes),
    ]


def pilot_line(report: PilotReport) -> str:
    """The same in one line, for a run that goes on."""
    parts = [
        f"pilot of {report.rows:,} rows: {report.rows_per_s:,.1f} rows/s",
        f"{report.output_tokens_per_s:,.0f} output tokens/s",
        f"answers p50 {report.output_p50:,} and p99 {report.output_p99:,} tokens",
        f"{report.cut_share:.1%} cut at max_tokens",
        f"the whole job takes {_time(report.hours)}",
    ]
    if report.usd is not None:
        parts.append(_shown(report.usd, "${:,.2f}"))
    return " · ".join(parts)


def _measured(report: PilotReport) -> list[str]:
    engine = f"KV cache in use up to {report.kv_use:.0%} · {report.preemptions:,} preemptions"
    if report.accepted_share is not None:
        engine += f" · {report.accepted_share:.0%} of the proposed tokens accepted"
    if report.gpu_use is not None:
        engine += f" · GPU busy {report.gpu_use:.0%}"
    if report.gpu_memory_bytes is not None:
        engine += f" · GPU memory {report.gpu_memory_bytes / 1e9:,.1f} GB"
    return [
        f"pilot          {report.rows:,} of {report.rows_total:,} rows · "
        f"start-up {report.start_up_s:,.1f} s",
        f"speed          {report.rows_per_s:,.1f} rows/s · {report.prompt_tokens_per_s:,.0f} prompt "
        f"tokens/s · {report.output_tokens_per_s:,.0f} output tokens/s",
        f"engine         {report.running:,.0f} rows at a time · {engine}",
        f"without answer failed {report.failed_share:.2%} · rejected {report.rejected_share:.2%}",
    ]


def _outputs(report: PilotReport) -> list[str]:
    return [
        f"output tokens  p50 {report.output_p50:,} · p90 {report.output_p90:,} · "
        f"p99 {report.output_p99:,}",
        f"cut            {report.cut_share:.1%} of the answers end at max_tokens "
        f"({report.max_tokens:,}); {_better_cap(report)}",
    ]


def _better_cap(report: PilotReport) -> str:
    cap = report.max_tokens_for_1_percent
    if cap is None:
        return "too many to say which value would cut 1 %"
    about = "about " if report.max_tokens_extrapolated else ""
    return f"{about}{cap:,} would cut 1 %"


def _whole(report: PilotReport) -> list[str]:
    cost = "price not given"
    if report.usd is not None:
        cost = _shown(report.usd, "${:,.2f}")
    return [
        "whole job, with the interval that holds the truth in 80 of 100 jobs",
        f"time           {_time(report.hours)}; still to do {_time(report.hours_left)}",
        *(f"GPU time       {_time(hours)}" for hours in [report.gpu_hours] if hours.estimate),
        f"cost           {cost}",
        f"tail           {report.tail_s:,.1f} s at the end, when the last long rows run alone",
    ]


def _shown(interval: Interval, pattern: str) -> str:
    low, mid, high = (pattern.format(x) for x in (interval.low, interval.estimate, interval.high))
    return f"{mid} ({low} to {high})"


def _time(hours: Interval) -> str:
    return f"{in_words(hours.estimate)} ({in_words(hours.low)} to {in_words(hours.high)})"


def in_words(hours: float) -> str:
    """`41 s`, `12.4 min`, `3.40 h`: hours in the unit in which they read best."""
    if hours < 1 / 30:
        return f"{hours * 3600:,.0f} s"
    if hours < 2:
        return f"{hours * 60:,.1f} min"
    return f"{hours:,.2f} h"
