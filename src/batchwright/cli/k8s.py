"""The commands on a cluster: the same job as pods."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchwright.cli import render as show
from batchwright.cli.arguments import AsJson, Set
from batchwright.cli.ending import ending, stopping
from batchwright.cli.options import job_for_elsewhere

if TYPE_CHECKING:
    from batchwright.config.job import Job
    from batchwright.deploying import RunProgress
    from batchwright.k8s.standing import Standing
    from batchwright.rundir.locations import Location

app = typer.Typer(
    name="k8s",
    help="The same job as pods on Kubernetes: by the section `kubernetes` of the job file.",
    no_args_is_help=True,
)

JobFile = Annotated[str, typer.Argument(metavar="JOB", help="The job file.")]
ModeName = Annotated[
    str | None, typer.Option("--mode", help="job, ray or ray-deployment: kubernetes.mode.")
]
MORE_PODS = 20


def _job(source: str, settings: list[str] | None, mode: str | None = None) -> tuple[Job, Location]:
    return job_for_elsewhere(source, {"kubernetes.mode": mode}, settings or [])


@app.command("render")
def render(
    source: JobFile,
    mode: ModeName = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the manifests.")
    ] = None,
    settings: Set = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Write the manifests, checked; nothing is sent. To the terminal unless a folder is given."""
    from batchwright import deploying
    from batchwright.k8s.render import as_yaml, write_manifests

    with ending(as_json=as_json):
        job, folder = _job(source, settings, mode)
        with stopping() as stop:
            workload, found = deploying.render(job, folder, stop, show.count_lines())
        files = write_manifests(found, output) if output else []
        if as_json:
            show.show_json({"manifests": found, "files": [str(path) for path in files]})
        elif not output:
            show.print_line("---\n".join(as_yaml(one) for one in found))
        else:
            for path in files:
                show.print_line(str(path))
            shape = workload.shape
            show.say(
                f"pods: {workload.pods}; each: {shape.gpus} GPU, {shape.cpu} cores, {shape.memory} memory "
                f"of which {shape.shm} /dev/shm"
            )
            show.say(f"send them  kubectl apply -k {output}   or  batchwright k8s submit {source}")


@app.command("check")
def check(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILES", help="Manifests: files and folders.")
    ],
    version: Annotated[
        str, typer.Option("--version", help="Version of the cluster, for the schemas.")
    ] = "1.34",
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Check manifests, these or others: schemas, and the rules that schemas miss. Exit 2 if wrong."""
    from batchwright import deploying
    from batchwright.core.errors import JobError
    from batchwright.k8s.render import read_manifests
    from batchwright.k8s.rules import advice_of

    with ending(as_json=as_json):
        placed = read_manifests(files)
        if not placed:
            raise JobError(f"no manifests in {', '.join(map(str, files))}")
        found = [one for _, one in placed]
        advice = [str(one) for one in advice_of(found)]
        for text in advice:
            show.say(f"advice: {text}")
        deploying.refuse(deploying.check(found, version))
        kinds = [f"{it['kind']}/{(it.get('metadata') or {}).get('name')}" for it in found]
        value = {"right": kinds, "advice": advice}
        show.show_lines([f"{name}: right" for name in kinds], value, as_json=as_json)


@app.command("submit")
def submit(
    source: JobFile,
    mode: ModeName = None,
    force: Annotated[  # noqa: FBT002
        bool, typer.Option("--force", help="Send it although no pod could run now.")
    ] = False,
    settings: Set = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Check, look at quota and nodes, and send the job. Sent again later, it goes on."""
    from batchwright import deploying
    from batchwright.core.errors import JobError

    with ending(as_json=as_json):
        job, folder = _job(source, settings, mode)
        with stopping() as stop:
            workload, found = deploying.render(job, folder, stop, show.count_lines())
        cluster = deploying.cluster_of(job)
        doubts = deploying.doubts(cluster, workload, found, job, folder)
        for doubt in doubts:
            show.say(f"{'no' if doubt.blocks else 'note'}: {doubt.message}")
        blocking = [doubt.message for doubt in doubts if doubt.blocks]
        if blocking and not force:
            raise JobError(
                "\n".join(["not even one pod could run:", *blocking]),
                "Mend that, or send it all the same with --force.",
            )
        made = deploying.submit(cluster, found, job)
        value: dict[str, Any] = {
            "created": made,
            "namespace": cluster.namespace,
            "notes": [doubt.message for doubt in doubts],
        }
        lines = [
            *(f"created  {name}" for name in made),
            f"watch    batchwright k8s status {source}",
        ]
        show.show_lines(lines, value, as_json=as_json)


@app.command("status")
def status(
    source: JobFile,
    settings: Set = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Pods and rows: what runs, what waits and why, how far the run is."""
    from batchwright import deploying

    with ending(as_json=as_json):
        job, folder = _job(source, settings)
        found = deploying.look(deploying.cluster_of(job), job)
        progress, why_not = deploying.run_progress(folder)
        value = {**found.as_json(), "run_dir": str(folder)}
        value |= {"run": progress.as_json() if progress else None, "run_unknown": why_not}
        rows = _rows(progress) if progress else why_not
        show.show_lines(status_lines(found, rows), value, as_json=as_json)


@app.command("logs")
def logs(
    source: JobFile,
    pod: Annotated[str | None, typer.Option("--pod", help="Only this pod.")] = None,
    index: Annotated[int | None, typer.Option("--index", help="Only pods of this index.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", help="Only so many last lines.")] = None,
    follow: Annotated[  # noqa: FBT002
        bool, typer.Option("--follow", "-f", help="Go on with lines that come.")
    ] = False,
    settings: Set = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """What the pods say."""
    from batchwright import deploying

    with ending(as_json=as_json):
        job, _ = _job(source, settings)
        lines: list[str] = []
        with contextlib.suppress(KeyboardInterrupt):  # how one stops following
            deploying.logs(
                deploying.cluster_of(job), job, lines.append if as_json else show.print_line,
                pod=pod, index=index, tail=tail, follow=follow,
            )  # fmt: skip
        if as_json:
            show.show_json({"lines": lines})


@app.command("delete")
def delete(
    source: JobFile,
    settings: Set = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Remove the job from the cluster. Its run directory stays; sent again, it goes on."""
    from batchwright import deploying

    with ending(as_json=as_json):
        job, folder = _job(source, settings)
        gone = deploying.delete(deploying.cluster_of(job), job)
        lines = [f"removed  {name}" for name in gone] or ["there is nothing to remove"]
        value = {"removed": gone, "run_dir": str(folder)}
        show.show_lines(lines, value, as_json=as_json)


def status_lines(found: Standing, rows: str) -> list[str]:
    """The standing of a job for people: the whole first, then each pod that needs a word."""
    lines = []
    for job in found.jobs:
        why = f": {job.why}" if job.why else ""
        lines.append(f"{job.kind} {job.name}: {job.state}{why}")
        if job.failed_indexes:
            which = ", ".join(map(str, job.failed_indexes))
            lines.append(f"  failed indexes {which}: other pods take over what they had begun")
    lines.append(f"  rows   {rows}")
    counts = found.counts()
    lines.append(
        "  pods   " + (", ".join(f"{number} {state}" for state, number in counts.items()) or "none")
    )
    # A thousand pods that wait for one reason are one line.
    reasons: dict[tuple[str, str], list[str]] = {}
    for pod in found.pods:
        if pod.why:
            reasons.setdefault((pod.state, pod.why), []).append(pod.name)
    for (state, why), names in list(reasons.items())[:MORE_PODS]:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"         {names[0]}{more}: {state}: {why}")
    return lines


def _rows(progress: RunProgress) -> str:
    counts = progress.counts
    about = "" if counts.ordered else "about "
    parts = [
        f"{counts.done:,} of {about}{counts.rows:,} done",
        f"{counts.failed:,} failed",
        f"{counts.rejected:,} rejected",
    ]
    if counts.complete:
        return " · ".join([*parts, "complete"])
    parts.append(f"{progress.rows_per_s:,.1f} rows/s")
    if progress.eta_s is not None:
        parts.append(f"{show.duration(progress.eta_s)} left")
    return " · ".join(parts)
