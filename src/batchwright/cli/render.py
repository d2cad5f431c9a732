"""What the terminal shows: progress, tables, plain lines in a log, and JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import orjson
import typer

from batchwright.cli.tables import failure_lines, result_lines
from batchwright.core.errors import BatchwrightError, Interrupted, Stopped

if TYPE_CHECKING:
    from batchwright.core.plan import Plan
    from batchwright.deliver import Summary
    from batchwright.foresight.check import Validation
    from batchwright.rundir.locations import Location
    from batchwright.rundir.state import Counts
    from batchwright.rundir.waste import Waste
    from batchwright.running.drive import Progress

# A log that nobody watches gets a line this often.
PLAIN_EVERY_S = 10.0

Watch = Callable[["Progress"], None]


@contextmanager
def watching(*, as_json: bool) -> Iterator[Watch]:
    """A function that shows progress: a bar on a terminal, a line every 10 s elsewhere."""
    if sys.stderr.isatty() and not as_json:
        with _bar() as watch:
            yield watch
    else:
        yield _PlainLines()


def opening_lines(progress: Progress) -> list[str]:
    """Where the run lives, and what was done before this start."""
    counts = progress.counts
    lines = [f"run directory: {progress.run_dir}"]
    if counts.chunks_done and not counts.complete:
        about = "" if counts.ordered else "about "
        lines.append(
            f"going on: {counts.done:,} of {about}{progress.rows_expected:,} rows are done"
        )
    return lines


class _PlainLines:
    def __init__(self) -> None:
        self._said_at = time.monotonic() - PLAIN_EVERY_S + 2.0
        self._last = ""
        self._opened = False

    def __call__(self, progress: Progress) -> None:
        """Print a line if it is time for one."""
        if not self._opened:
            self._opened = True
            for line in opening_lines(progress):
                say(line)
        for note in progress.notes:
            say(note)
        now = time.monotonic()
        done = progress.counts.complete
        if now - self._said_at < PLAIN_EVERY_S and not done:
            return
        line = progress_line(progress)
        if line != self._last:
            say(line)
        self._said_at, self._last = now, line


def progress_line(progress: Progress) -> str:
    """Progress in one line: `1,200 of 5,000 rows · 240 rows/s · 3,100 tokens/s · …`."""
    if not progress.rows_expected:
        return f"reading the input · {progress.phase}"
    about = "" if progress.counts.ordered else "about "
    parts = [
        f"{progress.rows_done:,} of {about}{progress.rows_expected:,} rows",
        f"{progress.rows_per_s:,.1f} rows/s",
        f"{progress.tokens_per_s:,.0f} tokens/s",
        f"{progress.counts.failed:,} failed",
        f"{progress.counts.rejected:,} rejected",
    ]
    if progress.eta_s is not None and not progress.counts.complete:
        parts.append(f"{duration(progress.eta_s)} left")
    return " · ".join([*parts, progress.phase])


def short_line(progress: Progress) -> str:
    """Progress beside a bar, short enough for 80 columns."""
    if not progress.rows_expected:
        return f"reading the input · {progress.phase}"
    about = "" if progress.counts.ordered else "~"
    parts = [f"{progress.rows_done:,}/{about}{progress.rows_expected:,} rows"]
    without_answer = progress.counts.failed + progress.counts.rejected
    if progress.phase == "running":
        parts += [f"{progress.rows_per_s:,.0f}/s", f"{progress.tokens_per_s:,.0f} tok/s"]
    else:
        parts.append(progress.phase)
    if without_answer:
        parts.append(f"[red]{without_answer:,} bad[/]")
    if progress.eta_s is not None and not progress.counts.complete:
        parts.append(f"{duration(progress.eta_s)} left")
    return " · ".join(parts)


@contextmanager
def _bar() -> Iterator[Watch]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("[bold]{task.percentage:>3.0f}%"),
        BarColumn(bar_width=12),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as bars:
        task = bars.add_task("starting", total=None)
        opened: list[str] = []

        def watch(shown: Any) -> None:
            if not opened:
                opened.extend(opening_lines(shown))
                bars.console.print("\n".join(opened), highlight=False)
            for note in shown.notes:
                bars.console.print(note, highlight=False)
            bars.update(
                task,
                total=shown.rows_expected or None,
                completed=shown.rows_done,
                description=short_line(shown),
            )

        yield cast("Watch", watch)


def show_summary(summary: Summary, *, as_json: bool) -> None:
    """How a run ended."""
    if as_json:
        show_json(summary.as_json())
        return
    counts = summary.counts
    say("")
    say(f"{counts.rows:,} rows in {duration(summary.wall_s)}: {fates(counts)}")
    before = ", those of replaced answers included" if counts.again else ""
    say(f"  tokens   {counts.prompt_tokens:,} prompt, {counts.completion_tokens:,} output{before}")
    if counts.truncated:
        say(f"  cut      {counts.truncated:,} answers ended at max_tokens: see finish_reason")
    for line in failure_lines(summary.run_dir, counts):
        say(f"  {line}")
    if summary.waste.rows:
        say(f"  wasted   {waste_words(summary.waste)}")
    if counts.failed:
        say(f"  again    batchwright retry {summary.run_dir}")
    for line in result_lines(summary):
        say(f"  {line}")
    say(f"  proof    batchwright verify {summary.run_dir}")


def show_complete(run_dir: Location, counts: Counts, *, as_json: bool) -> None:
    """A run that is done, by a worker that leaves its results to another."""
    if as_json:
        show_json({"run_dir": str(run_dir), **counts.as_json(), "complete": counts.complete})
        return
    say(f"{run_dir} is complete: {fates(counts)}")


def show_validation(report: Validation, *, as_json: bool) -> None:
    """What would be rejected, and what is odd but runs."""
    if as_json:
        show_json(report.as_json())
        return
    print_line(f"{report.rows:,} rows: {report.valid:,} valid, {report.rejected:,} rejected")
    _print_findings("rejected", report.rejections)
    _print_findings("warning", report.warnings)


def validation_lines() -> Callable[[Validation], None]:
    """A function that says every 10 s how many rows are checked."""
    return _now_and_then(
        lambda report: f"{report.rows:,} rows checked · {report.rejected:,} rejected"
    )


def count_lines(done: str = "counted") -> Callable[[int], None]:
    """A function that says every 10 s how many rows are counted, or whatever is done with them."""
    return _now_and_then(lambda rows: f"{rows:,} rows {done}")


def _now_and_then(line: Callable[[Any], str]) -> Callable[[Any], None]:
    said_at = time.monotonic()

    def say_it(value: Any) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= PLAIN_EVERY_S:
            said_at = time.monotonic()
            say(line(value))

    return say_it


def show_lines(lines: Sequence[str], value: Mapping[str, Any], *, as_json: bool) -> None:
    """An answer of several lines, or the same as JSON."""
    if as_json:
        show_json(value)
        return
    for line in lines:
        print_line(line)


def as_yaml(plan: Plan) -> list[str]:
    """The plan's settings as a section of a job file."""
    import yaml

    options = {name: value for name, value in plan.engine_options().items() if name != "dtype"}
    run = {"replicas": plan.replicas}
    if plan.pool_of_each is not None:  # the run divides the memory of a card by this
        run["engines_per_gpu"] = plan.value("engines_per_gpu")
        del options["gpu_memory_utilization"]
    section = {"engine": {"options": options}, "run": run}
    text = yaml.safe_dump(section, sort_keys=False, default_flow_style=None, width=76)
    return [f"  {line}" for line in text.splitlines()]


def _print_findings(kind: str, findings: Mapping[str, Sequence[Any]]) -> None:
    for code, (number, example) in findings.items():
        print_line(f"  {kind} {code}: {number:,} rows, first {example}")


def show_files(files: Sequence[Location], *, as_json: bool) -> None:
    """The files that were written."""
    if as_json:
        show_json({"results": [str(path) for path in files]})
        return
    for path in files:
        print_line(str(path))


def show_error(error: BatchwrightError, *, as_json: bool) -> None:
    """An error that ends the command: what is wrong and what to do."""
    if as_json:
        body = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
        show_json({"error": body, "exit_code": error.exit_code})
    kind = "stopped" if isinstance(error, Stopped | Interrupted) else "error"
    say(f"{kind}: {error}")


def show_json(value: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    print_line(orjson.dumps(value).decode())


def duration(seconds: float) -> str:
    """`41 s`, `12 min`, `3.4 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def waste_words(waste: Waste) -> str:
    """What was done in vain."""
    return f"{waste.rows:,} rows ({waste.tokens:,} output tokens) were computed but do not count"


def fates(counts: Counts) -> str:
    """`98 ok, 2 failed, 0 rejected`."""
    return f"{counts.ok:,} ok, {counts.failed:,} failed, {counts.rejected:,} rejected"


def print_line(text: str) -> None:
    """A line of the command's answer."""
    typer.echo(text)


def say(text: str) -> None:
    """A line for people, on stderr."""
    typer.echo(text, err=True)
