"""`batchwright worker`: one worker of a run, alone or one of many that never speak to each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batchwright.cli import render
from batchwright.cli.arguments import AsJson, Dir, MetricsPort, Set, WithParent
from batchwright.cli.ending import ending, leave, stopping
from batchwright.cli.watching import watching
from batchwright.core.errors import JobError

if TYPE_CHECKING:
    from batchwright.config.job import Job
    from batchwright.rundir.locations import Location

_JOB_FILES = (".yaml", ".yml")


def worker(
    source: Annotated[
        str, typer.Argument(metavar="RUN", help="Run directory (folder or s3://…), or a job file.")
    ],
    role: Annotated[
        str | None,
        typer.Option(help="infer, prepare, or both in one; unset, all that a run needs."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name in the ledger.")] = None,
    run_dir: Dir = None,
    metrics_port: MetricsPort = None,
    settings: Set = None,
    with_parent: WithParent = False,  # noqa: FBT002
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """One worker of a run: what each pod or Slurm task runs.

    Any number of them work on the same run, start and end when they like, and need no other
    process: each prepares rows, answers chunks, and whoever sees the last row done writes the
    results. With a job file the run is created by whoever comes first. Exit codes: 0 the run is
    complete; 4 the same, but more rows failed than `run.max_failed`; 75 stopped, start it again; 2
    and 3 the job or the input is wrong.
    """
    from batchwright.rundir.ledger import new_worker_name
    from batchwright.running import roles

    with ending(as_json=as_json), stopping() as stop:
        if with_parent:
            roles.stop_with_parent(stop)
        if role is not None and metrics_port is not None:
            raise JobError("--metrics-port is for a worker that does all that a run needs",
                           "Leave --role out, or give the port to `batchwright run`.")  # fmt: skip
        place, job = _place_and_job(source, run_dir, settings or [])
        if role is not None:
            roles.attend(place, role, name or new_worker_name(role), stop)
            return
        from batchwright.joining import work

        name = name or new_worker_name("worker")
        port = metrics_port or (None if job is None else job.run.metrics_port)
        # Of the run, each of its workers knows the same; of the others' readings, theirs.
        mine = (name, f"{name}-prepare")
        must = metrics_port is not None
        with watching(port, as_json=as_json, workers=mine, must=must) as watch:
            ended = work(place, job, name, watch, stop)
        if ended.summary is not None:
            render.show_summary(ended.summary, as_json=as_json)
        else:
            render.show_complete(place, ended.counts, as_json=as_json)
        leave(ended.many_failed)


def _place_and_job(
    source: str, run_dir: str | None, settings: list[str]
) -> tuple[Location, Job | None]:
    """Where the run is; and the job, if that is what is named."""
    from batchwright.cli.options import job_and_dir
    from batchwright.rundir.locations import location_of

    if Path(source).suffix not in _JOB_FILES:
        return location_of(source), None
    job, place = job_and_dir(source, {}, settings, run_dir)
    return place, job
