"""The report of a run as a page: what to change, what came of the rows, where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from batchwright.core.findings import Finding, Weight
from batchwright.core.report import ROW_BEGUN, Chart, ReportFacts
from batchwright.pages.blocks import (
    Block,
    Card,
    Cards,
    Figure,
    Figures,
    Section,
    Stack,
    Table,
    Tiles,
    Words,
    make_page,
    source_name,
)
from batchwright.pages.charts import draw_columns, draw_lines
from batchwright.pages.plan import plan_settings
from batchwright.pages.promises import promises
from batchwright.pilot.show import in_words
from batchwright.plan.explain import headline, limit_lines, shown

_BADGES = {
    Weight.BROKEN: "rows or the run were lost",
    Weight.LOSS: "cost time",
    Weight.HINT: "hint",
}

_VALUE_CHARACTERS = 400

_ROWS_COMMAND = (
    "`batchwright rows RUN` shows the rows themselves, and writes them to a file with -o."
)


def report_page(facts: ReportFacts, findings: Sequence[Finding] | None) -> str:
    """The page of a run, whatever is known of it; sections without facts are left out.

    Args:
        facts: of the run.
        findings: of its diagnosis, most important first; None if nobody has looked.
    """
    sections = [
        Section("What to change", _findings(findings)),
        Section("Rows", _rows(facts)),
        Section("Rows without an answer", _failures(facts)),
        Section("Over time", _charts(facts)),
        Section("Where the time of the engines went", _balance(facts)),
        Section("Promised and measured", promises(facts)),
        Section("How long rows took", _times(facts)),
        Section("Lengths", _lengths(facts)),
        Section("Workers", _workers(facts)),
        Section("Plan", _plan(facts)),
        Section("Settings", _settings(facts)),
        Section("Versions", _versions(facts)),
    ]
    return make_page(f"Run of {source_name(facts.source)}", _lead(facts), sections)


def _lead(facts: ReportFacts) -> list[str]:
    words = {
        "finished": f"Finished in {in_words(facts.cost.hours)}.",
        "running": "Under way: this page is of the moment at which it was written.",
        "stopped": "Not finished: the same command goes on where it stopped.",
    }
    lines = [words[facts.state], facts.run_dir]
    if facts.began_at:
        lines.append(f"{_moment(facts.began_at)} to {_moment(facts.ended_at)} UTC")
    return lines


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _findings(findings: Sequence[Finding] | None) -> tuple[Block, ...]:
    if findings is None:
        return ()
    if not findings:
        return (Words(("No rule of the diagnosis found anything.",)),)
    return (Cards(tuple(_card(one) for one in findings)),)


def _card(finding: Finding) -> Card:
    whose = (("worker", finding.worker),) if finding.worker else ()
    gain = (
        () if finding.gain is None else (("would save", f"about {finding.gain:.0%} of the time"),)
    )
    return Card(
        weight=finding.weight.value,
        badge=_BADGES[finding.weight],
        title=finding.title,
        code=finding.code,
        lines=(finding.cause, finding.remedy),
        facts=(*gain, *finding.evidence, *whose),
        changes=tuple((one.setting, one.now, one.to) for one in finding.changes),
    )


def _rows(facts: ReportFacts) -> tuple[Block, ...]:
    if not facts.rows:
        return (Words(("No row has been read yet.",)),)
    about = "" if facts.rows == facts.rows_expected else f"of about {facts.rows_expected:,}"
    tiles = [
        ("rows read" if about else "rows", f"{facts.rows:,}", about),
        ("with an answer", f"{facts.ok:,}", _share(facts.ok, facts.rows)),
        ("failed", f"{facts.failed:,}", _share(facts.failed, facts.rows)),
        ("rejected", f"{facts.rejected:,}", _share(facts.rejected, facts.rows)),
        ("time", in_words(facts.cost.hours), "in which a worker was there"),
        *_cost(facts),
        *_speeds(facts),
    ]
    left = facts.rows_expected - facts.ok - facts.failed - facts.rejected
    if left > 0:
        tiles.append(("still to do", f"{left:,}", ""))
    if facts.wasted_rows:
        tiles.append(("computed in vain", f"{facts.wasted_rows:,}", "rows"))
    return (Tiles(tuple(tiles)),)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2%}" if part and whole else ""


def _cost(facts: ReportFacts) -> list[tuple[str, str, str]]:
    cost = facts.cost
    if not cost.card_hours:
        return []
    name = "GPU time" if cost.on_cards else "engine time"
    tiles = [(name, in_words(cost.card_hours), f"of {_worker_count(facts)}")]
    price = (
        "give plan.usd_per_gpu_hour" if cost.usd is None else f"at ${cost.usd_per_card_hour:g}/h"
    )
    shown_cost = "price not given" if cost.usd is None else f"${cost.usd:,.2f}"
    return [*tiles, ("cost", shown_cost, price)] if cost.on_cards or cost.usd else tiles


def _worker_count(facts: ReportFacts) -> str:
    count = len(facts.workers)
    return f"{count:,} worker{'' if count == 1 else 's'}"


def _speeds(facts: ReportFacts) -> list[tuple[str, str, str]]:
    if facts.busy_s <= 0:
        return []
    done = facts.ok + facts.failed
    tiles = [("speed", f"{done / facts.busy_s:,.1f} rows/s", "while chunks were in work")]
    tiles.append(("prompts", f"{facts.prompt_tokens / facts.busy_s:,.0f} tokens/s",
                  f"{facts.prompt_tokens:,} tokens"))  # fmt: skip
    if facts.makes_text:
        tiles.append(("answers", f"{facts.output_tokens / facts.busy_s:,.0f} tokens/s",
                      f"{facts.output_tokens:,} tokens"))  # fmt: skip
        tiles.append(("cut at max_tokens", f"{facts.truncated:,}", _share(facts.truncated, done)))
    balance = facts.balance
    if balance is not None and balance.share_of_limit is not None:
        tiles.append(
            ("of the hardware's limit", f"{balance.share_of_limit:.0%}", "start-up included")
        )
    return tiles


def _failures(facts: ReportFacts) -> tuple[Block, ...]:
    if not facts.failures:
        return ()
    groups = tuple(
        (
            one.code,
            one.status,
            f"{one.count:,}" if one.exact else f"about {one.count:,}",
            one.example,
            ", ".join(f"{row:,}" for row in one.rows),
            one.remedy,
        )
        for one in facts.failures
    )
    head = ("code", "fate", "rows", "for example", "the first of them", "what to do")
    return Table(head, groups, frozenset({2})), Words((_ROWS_COMMAND,))


def _charts(facts: ReportFacts) -> tuple[Block, ...]:
    if not facts.charts:
        return ()
    end_s = facts.ended_at - facts.began_at
    figures = tuple(_figure(chart, end_s) for chart in facts.charts)
    note = "Across: time since the first worker started. A gap in a line: nothing was noted."
    if any("by chunks" in chart.title for chart in facts.charts):
        note += (
            " There is no telemetry of this run: the line is made from when chunks were committed."
        )
    return Figures(figures), Words((note,))


def _figure(chart: Chart, end_s: float) -> Figure:
    names = tuple(curve.name for curve in chart.curves)
    unit = "" if chart.unit == "share" else f", {chart.unit}"
    return Figure(f"{chart.title}{unit}", draw_lines(chart, end_s), names if len(names) > 1 else ())


def _balance(facts: ReportFacts) -> tuple[Block, ...]:
    found = facts.balance
    if found is None:
        return ()
    parts = tuple((one.name, one.seconds, _seconds(one.seconds)) for one in found.parts)
    total = f"{_seconds(found.total_s)} of {_worker_count(facts)}, from start to end."
    words: tuple[str, ...]
    if found.share_of_limit is None:
        words = (
            total,
            "What the hardware could do for these rows is known where there is a plan: on machines "
            "with cards.",
        )
    else:
        words = (
            f"{total} At its limit the hardware needs {_seconds(found.limit_s or 0.0)} for the rows "
            f"that are done: the run came to {found.share_of_limit:.0%} of that limit.",
        )
    return Stack("Time of the engines", parts), Words(words)


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds < 120 else in_words(seconds / 3600)


def _times(facts: ReportFacts) -> tuple[Block, ...]:
    if not facts.times:
        return ()
    rows = tuple(
        (one.name, *(_seconds(x) for x in (one.p50_s, one.p90_s, one.p99_s, one.longest_s)))
        for one in facts.times
    )
    head = ("time of a", "p50", "p90", "p99", "longest")
    words = ["A row waits for its turn in an engine that is full on purpose: its times hold that."]
    if facts.makes_text and all(one.name != ROW_BEGUN for one in facts.times):
        words.append(
            "When rows got their first tokens was not told: endpoints do not, nor did earlier versions."
        )
    blocks: list[Block] = [Table(head, rows, frozenset(range(1, 5))), Words((" ".join(words),))]
    if facts.slow_rows:
        slow = tuple((f"{row:,}", _seconds(seconds)) for row, seconds in facts.slow_rows)
        blocks.append(Table(("slowest rows", "time"), slow, frozenset({1})))
    if facts.slow_chunks:
        chunks = tuple(
            (one.name, one.worker, f"{one.rows:,}", _seconds(one.seconds),
             f"{one.rows / max(one.seconds, 1e-9):,.1f}")
            for one in facts.slow_chunks
        )  # fmt: skip
        head = ("slowest chunks", "worker", "rows", "time", "rows/s")
        blocks.append(Table(head, chunks, frozenset({2, 3, 4})))
    return tuple(blocks)


def _lengths(facts: ReportFacts) -> tuple[Block, ...]:
    lengths = facts.lengths
    if not lengths.rows_seen:
        return ()
    figures = []
    table = []
    for name, found in (("Prompt tokens", lengths.prompts), ("Output tokens", lengths.outputs)):
        if not found.rows:
            continue
        figures.append(
            Figure(
                f"{name} per row", draw_columns(found, name), (), "tokens, logarithmic; up: rows"
            )
        )
        table.append((name, *(f"{found.quantile(share):,}" for share in (0.5, 0.9, 0.99)),
                      f"{found.longest:,}", f"{found.mean:,.1f}"))  # fmt: skip
    head = ("", "p50", "p90", "p99", "longest", "mean")
    whole = "all" if lengths.rows_seen >= facts.ok else f"{lengths.rows_seen:,} of {facts.ok:,}"
    words = [f"Of {whole} rows with an answer."]
    if lengths.cached_tokens:
        share = lengths.cached_tokens / max(1, lengths.prompts.total)
        words.append(f"The prefix cache saved {share:.1%} of the prompt tokens.")
    return (
        Figures(tuple(figures)),
        Table(head, tuple(table), frozenset(range(1, 6))),
        Words((" ".join(words),)),
    )


def _workers(facts: ReportFacts) -> tuple[Block, ...]:
    rows = tuple(
        (one.name, one.worker, one.host, one.device, one.state, in_words(one.hours),
         "" if one.start_up_s is None else f"{one.start_up_s:,.1f} s",
         f"{one.rows:,}", f"{one.output_tokens:,}" if facts.makes_text else "")
        for one in facts.workers
    )  # fmt: skip
    head = ("", "name", "machine", "device", "state", "time", "start-up", "rows", "output tokens")
    return (Table(head, rows, frozenset({5, 6, 7, 8})),) if rows else ()


def _plan(facts: ReportFacts) -> tuple[Block, ...]:
    plan = facts.plan
    if plan is None:
        return ()
    notes = [Words(plan.notes, listed=True)] if plan.notes else []
    return (
        Words(tuple(headline(plan))),
        plan_settings(plan),
        Words(tuple(limit_lines(plan)[:2])),
        *notes,
    )


def _settings(facts: ReportFacts) -> tuple[Block, ...]:
    rows = [(name, _value(value)) for name, value in facts.settings.items()]
    rows += [(f"engine.options.{name}", _value(x)) for name, x in facts.engine_options.items()]
    words = Words(("Those that are not as they are by default; all of them are in job.yaml.",))
    return (Table(("setting", "value"), tuple(rows)), words) if rows else ()


def _value(value: object) -> str:
    text = shown(value) if not isinstance(value, dict) else str(value)
    return text if len(text) <= _VALUE_CHARACTERS else f"{text[:_VALUE_CHARACTERS]}…"


def _versions(facts: ReportFacts) -> tuple[Block, ...]:
    return (Table(("what", "version"), tuple(facts.versions.items())),) if facts.versions else ()
