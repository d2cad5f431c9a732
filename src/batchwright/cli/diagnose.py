"""`diagnose`: why a run is slow or broken, and what to change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from batchwright.cli import render
from batchwright.cli.arguments import AsJson, RunDir
from batchwright.cli.ending import ending
from batchwright.cli.options import run_place

if TYPE_CHECKING:
    from batchwright.core.findings import Finding
    from batchwright.diagnose.verdict import Diagnosis

Check = Annotated[
    bool, typer.Option("--check", help="Exit 1 if anything costs rows, time or money; for scripts.")
]

# Below the findings, a line for each worker up to so many.
MOST_WORKERS = 8

_WIDTH = 96


def diagnose_run(
    run_dir: RunDir,
    check: Check = False,  # noqa: FBT002
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Say why a run is slow or broken: what is wrong, how that is known, what to change."""
    from batchwright import pipeline

    with ending(as_json=as_json):
        found = pipeline.diagnose(run_place(run_dir))
        value = {"run_dir": run_dir, **found.as_json()}
        render.show_lines(list(diagnosis_lines(run_dir, found)), value, as_json=as_json)
        if check and found.costs:
            raise typer.Exit(1)


def diagnosis_lines(run_dir: str, found: Diagnosis) -> Iterator[str]:
    """The diagnosis for people: findings, then the figures that they rest on."""
    from batchwright.diagnose.verdict import verdict_line

    figures = ", ".join(f"{name} {figure}" for name, figure in found.figures)
    if found.findings:
        yield f"{run_dir}: {_count(found)}"
    elif found.figures:
        yield f"{run_dir}: nothing is wrong. {figures}"
    else:
        yield f"{run_dir}: nothing is known to be wrong"
    for number, finding in enumerate(found.findings, 1):
        yield ""
        yield from _finding_lines(number, finding)
    if found.findings:
        yield ""
        if figures:
            yield from _wrapped("figures", figures, indent=0)
    for verdict in found.verdicts[:MOST_WORKERS]:
        yield f"worker   {verdict_line(verdict)}"
    if len(found.verdicts) > MOST_WORKERS:
        yield f"         and {len(found.verdicts) - MOST_WORKERS} more workers (--json has all)"
    for note in found.unknown:
        yield from _wrapped("unknown", note, indent=0)


def _count(found: Diagnosis) -> str:
    number = len(found.findings)
    return "1 thing is wrong" if number == 1 else f"{number} things are wrong, the worst first"


def _finding_lines(number: int, finding: Finding) -> Iterator[str]:
    from batchwright.diagnose.figures import percent

    worth = "" if finding.gain is None else f", worth up to {percent(finding.gain)} of the time"
    yield f"{number}. {finding.title} [{finding.code}]"
    yield f"   weight   {finding.weight.value}{worth}"
    if finding.worker is not None:
        yield f"   worker   {finding.worker}"
    for name, figure in finding.evidence:
        yield from _wrapped("known by", f"{name}: {figure}")
    yield from _wrapped("cause", finding.cause)
    yield from _wrapped("do", finding.remedy)
    for change in finding.changes:
        yield f"   set      {change.setting}: {change.now} -> {change.to}"


def _wrapped(label: str, text: str, indent: int = 3) -> Iterator[str]:
    import textwrap

    head = " " * indent + label.ljust(9)
    yield from textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [head.rstrip()]
