"""`load`: the vectors of a run into a vector database."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchwright.cli import render
from batchwright.cli.arguments import AsJson, RunDir
from batchwright.cli.ending import ending, leave, stopping
from batchwright.cli.options import run_place
from batchwright.cli.tables import load_lines

if TYPE_CHECKING:
    from batchwright.config.job import Job
    from batchwright.config.sections import LoadTarget
    from batchwright.core.stores import LoadCounts
    from batchwright.results.loading import Loader

To = Annotated[
    str | None,
    typer.Option(
        "--to", metavar="URL", help="postgresql://user@host/db?table=TABLE, qdrant://host:6333/"
        "COLLECTION, milvus://host:19530/COLLECTION or lance://folder/TABLE; the job's own targets "
        "unless given."
    ),
]  # fmt: skip
Columns = Annotated[
    str | None, typer.Option("--columns", help="Input columns to carry: all, none, or a,b,c.")
]
IdColumn = Annotated[str | None, typer.Option("--id", help="Input column to use as the id.")]
MetricName = Annotated[str | None, typer.Option("--metric", help="cosine, l2 or dot.")]
NoIndex = Annotated[bool, typer.Option("--no-index", help="Build no index: searches are exact.")]
BatchMb = Annotated[float | None, typer.Option("--batch-mb", help="Size of a request.")]
Parallel = Annotated[int | None, typer.Option("--parallel", help="Requests at a time.")]
Again = Annotated[bool, typer.Option("--again", help="Write all rows again, not only new ones.")]


def load_run(
    run_dir: RunDir,
    to: To = None,
    columns: Columns = None,
    id_column: IdColumn = None,
    metric: MetricName = None,
    no_index: NoIndex = False,  # noqa: FBT002
    batch_mb: BatchMb = None,
    parallel: Parallel = None,
    again: Again = False,  # noqa: FBT002
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Load a run's vectors into a vector database; started again, it goes on where it stopped."""
    from batchwright import pipeline
    from batchwright.results.following import load_now

    with ending(as_json=as_json):
        storage, manifest, job = pipeline.open_run(run_place(run_dir))
        options = {
            "id": id_column, "metric": metric, "index": False if no_index else None, "batch_mb": batch_mb,
            "parallel": parallel, "columns": _columns(columns),
        }  # fmt: skip
        given = {name: value for name, value in options.items() if value is not None}
        targets = _targets(job, to, given)
        with stopping() as stop:
            found = load_now(
                storage, manifest, job, targets, stop, again=again, watch=_progress_lines()
            )
        _show(run_dir, found, as_json=as_json)
        leave(_many_refused(found, job.run.max_failed))


def _columns(text: str | None) -> Any:
    if text is None or text in ("all", "none"):
        return text
    return [name.strip() for name in text.split(",") if name.strip()]


def _targets(job: Job, to: str | None, given: dict[str, Any]) -> list[LoadTarget]:
    """The job's own targets, or the one that is named: with what the job says of it, if anything."""
    from batchwright.config.load import make_section
    from batchwright.config.sections import LoadTarget
    from batchwright.core.errors import JobError
    from batchwright.core.stores import absolute_target, parse_target

    chosen = list(job.load)
    if to is not None:
        url = absolute_target(to, str(Path.cwd()))
        name = parse_target(url).name
        same = [one for one in job.load if parse_target(one.to).name == name]
        chosen = same or [make_section(LoadTarget, {"to": url}, "--to")]
    if not chosen:
        raise JobError(
            "nowhere to load to: the job has no load:",
            "Give --to, for instance qdrant://localhost:6333/reviews.",
        )
    return [make_section(LoadTarget, {**one.model_dump(), **given}, "--") for one in chosen]


def _progress_lines() -> Callable[[Loader], None]:
    """A function that says every 10 s how far a load is."""
    said_at = time.monotonic() - render.PLAIN_EVERY_S + 5.0
    before = (time.monotonic(), 0)

    def watch(loader: Loader) -> None:
        nonlocal said_at, before
        now = time.monotonic()
        if now - said_at < render.PLAIN_EVERY_S:
            return
        rate = max(0, loader.rows_sent - before[1]) / (now - before[0])
        render.say(f"{loader.rows_sent:,} rows loaded · {rate:,.0f} rows/s · {loader.phase}")
        said_at, before = now, (now, loader.rows_sent)

    return watch


def _many_refused(found: Sequence[LoadCounts], max_failed: float) -> bool:
    from batchwright.rundir.loads import total_faults

    rows = sum(one.loaded + sum(one.faults.values()) for one in found)
    return total_faults(found) > max_failed * rows


def _show(run_dir: str, found: Sequence[LoadCounts], *, as_json: bool) -> None:
    if as_json:
        render.show_json({"run_dir": str(run_dir), "loads": [one.as_json() for one in found]})
        return
    for one in found:
        for line in load_lines(run_dir, one):
            render.print_line(line)
