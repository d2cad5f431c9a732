"""The command `report`: one HTML page of what became of a run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchwright.cli import render
from batchwright.cli.arguments import AsJson, RunDir
from batchwright.cli.ending import ending
from batchwright.cli.options import run_place

if TYPE_CHECKING:
    from batchwright.core.report import ReportFacts

ReportPage = Annotated[
    Path | None,
    typer.Option("--page", metavar="FILE", help="report.html in the run directory unless given."),
]


def report(
    run_dir: RunDir,
    page: ReportPage = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Write one HTML page of a run: rows, cost, speed over time, where the time went, what failed."""
    from batchwright import pipeline

    with ending(as_json=as_json):
        facts, place = pipeline.report(run_place(run_dir), page)
        if as_json:
            render.show_json({"page": str(place), **facts_json(facts)})
        else:
            render.print_line(str(place))


def facts_json(facts: ReportFacts) -> dict[str, Any]:
    """The figures of the page that a script may want; seconds and hours as they are named."""
    balance = facts.balance
    failures: Counter[str] = Counter()
    for group in facts.failures:
        failures[group.code] += group.count
    return {
        "run_dir": facts.run_dir,
        "state": facts.state,
        "rows_in": facts.rows,
        "ok": facts.ok,
        "failed": facts.failed,
        "rejected": facts.rejected,
        "hours": facts.cost.hours,
        "card_hours": facts.cost.card_hours,
        "usd": facts.cost.usd,
        "share_of_limit": None if balance is None else balance.share_of_limit,
        "engine_seconds": {one.name: one.seconds for one in balance.parts} if balance else {},
        "failures": dict(failures),
    }
