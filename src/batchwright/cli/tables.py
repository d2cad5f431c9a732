"""Tables that the terminal shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchwright.core.stores import LoadCounts
    from batchwright.core.sweep import SweepPoint, SweepReport
    from batchwright.deliver import Summary
    from batchwright.rundir.locations import Location
    from batchwright.rundir.state import Counts

_HEAD = ("settings", "rows/s", "output tokens/s", "KV use", "preemptions", "worth")


def sweep_lines(report: SweepReport) -> list[str]:
    """What a sweep measured, the best marked, and what it did not measure."""
    rows = [_HEAD, *(_cells(report, index) for index in range(len(report.points)))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = [
        "  ".join(
            [
                ">" if index == report.kept + 1 else " ",
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        ).rstrip()
        for index, row in enumerate(rows)
    ]
    return [
        f"sweep on {report.device} with {report.engine}, {report.seconds:,.0f} s; "
        "worth is against the run's own settings (=)",
        *lines,
        *(f"skipped  {reason}" for reason in report.skipped),
        *_verdict(report),
    ]


def _cells(report: SweepReport, index: int) -> tuple[str, ...]:
    point = report.points[index]
    own = index == report.reference
    return (
        _named(point),
        f"{point.rows_per_s:,.1f}",
        f"{point.output_tokens_per_s:,.0f}",
        f"{point.kv_use:.0%}",
        f"{point.preemptions:,}",
        "=" if own else f"{report.worth(point):+.1%}",
    )


def _named(point: SweepPoint) -> str:
    return ", ".join(f"{name} {value}" for name, value in point.settings.items())


def _verdict(report: SweepReport) -> list[str]:
    best = _named(report.best)
    if report.kept == report.reference:
        return [f"kept     {best}: nothing brought more than noise"]
    worth = report.worth(report.best)
    if worth < 0.02:
        return [f"kept     {best}: {worth:+.1%}, within the noise of the fastest, and smaller"]
    return [f"kept     {best}: {worth:+.1%}"]


def failure_lines(run_dir: Location, counts: Counts) -> list[str]:
    """How many rows have no answer, by code, and the command that shows them."""
    show = f"batchwright rows {run_dir} --status"
    lines = []
    if counts.failures:
        codes = sorted(counts.failures.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{number:,} {code}" for code, number in codes[:4])
        more = f" and {len(codes) - 4} more codes" if len(codes) > 4 else ""
        lines += [f"failed   {shown}{more}", f"         {show} failed"]
    if counts.rejected:
        lines += [f"rejected {counts.rejected:,}", f"         {show} rejected"]
    return lines


def load_lines(run_dir: Location, load: LoadCounts) -> list[str]:
    """How far a load into a vector database is, and what is not there."""
    state = "" if load.finished else f", {load.parts_loaded} of {load.parts} parts so far"
    if load.parts_loaded == load.parts and not load.finished:
        state = ", not finished: load again"
    lines = [f"loaded   {load.loaded:,} rows into {load.url}{state}"]
    lines += [f"  not    {number:,} with {code}" for code, number in load.faults.items()]
    lines += [f"  note   {number:,} rows with {code}" for code, number in load.warnings.items()]
    if load.faults:
        lines.append(f"  see    {run_dir}/load/*/errors.jsonl")
    return lines


def result_lines(summary: Summary) -> list[str]:
    """Where the results of a run are, files first, then databases."""
    lines = [f"results  {path}" for path in summary.results[:5]]
    if len(summary.results) > 5:
        lines.append(f"         and {len(summary.results) - 5} more files")
    for load in summary.loads:
        lines += load_lines(summary.run_dir, load)
    if summary.report is not None:
        lines.append(f"report   {summary.report}")
    return lines
