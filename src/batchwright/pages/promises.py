"""What pilot and plan promised, beside what a run then took: blocks of its report."""

from __future__ import annotations

from batchwright.core.report import ReportFacts
from batchwright.pages.blocks import Block, Figure, Figures, Table, Words
from batchwright.pages.charts import draw_interval
from batchwright.pilot.show import in_words

_Row = tuple[str, str, str, str]


def promises(facts: ReportFacts) -> tuple[Block, ...]:
    """A table of promises and what came of them; nothing without pilot and plan."""
    rows = [*_of_pilot(facts), *_of_plan(facts)]
    if not rows:
        return ()
    blocks: list[Block] = []
    if facts.pilot is not None and facts.state == "finished":
        hours, took = facts.pilot.hours, facts.cost.hours
        words = f"The pilot said {in_words(hours.low)} to {in_words(hours.high)}; it took {in_words(took)}"
        svg = draw_interval(hours.low, hours.high, took, words)
        blocks.append(Figures((Figure(words, svg, (), "bar: the interval; mark: the truth"),)))
    head = ("what", "by", "promised", "measured" if facts.state == "finished" else "so far")
    blocks.append(Table(head, tuple(rows), frozenset({2, 3})))
    if facts.pilot is not None:
        note = (
            "The interval is meant to hold the truth in 80 of 100 jobs. Time and cost of other "
            "starts of the same run count in what was measured.",
        )
        blocks.append(Words(note))
    return tuple(blocks)


def _of_pilot(facts: ReportFacts) -> list[_Row]:
    pilot = facts.pilot
    if pilot is None:
        return []
    hours = pilot.hours
    rows: list[_Row] = [
        (
            "time of the whole job", "pilot",
            f"{in_words(hours.estimate)} ({in_words(hours.low)} to {in_words(hours.high)})",
            in_words(facts.cost.hours),
        ),
        ("rows/s, in steady work", "pilot", f"{pilot.rows_per_s:,.1f}", _rows_per_s(facts)),
    ]  # fmt: skip
    if pilot.usd is not None and facts.cost.usd is not None:
        usd = pilot.usd
        promised = f"${usd.estimate:,.2f} (${usd.low:,.2f} to ${usd.high:,.2f})"
        rows.append(("cost", "pilot", promised, f"${facts.cost.usd:,.2f}"))
    outputs = facts.lengths.outputs
    if outputs.rows:
        promised = f"{pilot.output_p50:,} and {pilot.output_p99:,}"
        measured = f"{outputs.quantile(0.5):,} and {outputs.quantile(0.99):,}"
        rows.append(("output tokens, p50 and p99", "pilot", promised, measured))
    done = max(1, facts.ok + facts.failed)
    cut = f"{facts.truncated / done:.1%}"
    rows.append(("answers cut at max_tokens", "pilot", f"{pilot.cut_share:.1%}", cut))
    return rows


def _of_plan(facts: ReportFacts) -> list[_Row]:
    """A run plans on a few rows, and takes them for more than the job has: its hours say nothing."""
    plan = facts.plan
    if plan is None:
        return []
    rate, done = plan.prediction.rows_per_s, facts.ok + facts.failed
    rows: list[_Row] = [("rows/s", "plan", f"{rate:,.1f}", _rows_per_s(facts))]
    if done and rate > 0 and facts.busy_s > 0:
        promised, measured = in_words(done / rate / 3600), in_words(facts.busy_s / 3600)
        rows.insert(0, ("time for these rows, start-up apart", "plan", promised, measured))
    return rows


def _rows_per_s(facts: ReportFacts) -> str:
    return f"{(facts.ok + facts.failed) / facts.busy_s:,.1f}" if facts.busy_s > 0 else ""
