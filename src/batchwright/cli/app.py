"""The commands: each parses, calls the pipeline, shows the result and says how it ended."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from batchwright import __version__
from batchwright.cli import render
from batchwright.cli.arguments import (
    AsJson,
    Column,
    Dir,
    EngineKind,
    Limit,
    MaxTokens,
    MetricsPort,
    Model,
    OutDir,
    OutFormat,
    Page,
    PromptText,
    RunDir,
    Sample,
    Set,
    Source,
    System,
)
from batchwright.cli.diagnose import diagnose_run
from batchwright.cli.ending import ending, leave, run_to_the_end, stopping
from batchwright.cli.export import export
from batchwright.cli.k8s import app as k8s
from batchwright.cli.load_run import load_run
from batchwright.cli.logs import logs
from batchwright.cli.options import about_the_data, job_alone, job_and_dir, run_place
from batchwright.cli.report import report
from batchwright.cli.rows import rows
from batchwright.cli.run_batch import VLLM_WORDS, run_batch
from batchwright.cli.standing import show_status, show_verification
from batchwright.cli.top import top
from batchwright.cli.watching import watching
from batchwright.cli.worker import worker
from batchwright.tokens.lean import leave_torch_out

app = typer.Typer(
    name="batchwright",
    help="Offline batch inference for language models: a dataset in, every row's answer out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def run(
    source: Source,
    model: Model = None,
    prompt: PromptText = None,
    system: System = None,
    column: Column = None,
    max_tokens: MaxTokens = None,
    output: OutDir = None,
    output_format: OutFormat = None,
    engine: EngineKind = None,
    limit: Limit = None,
    run_dir: Dir = None,
    metrics_port: MetricsPort = None,
    settings: Set = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Answer every row; started again, it goes on where it stopped."""
    from batchwright import pipeline

    options = {
        **about_the_data(model, prompt, system, column, limit),
        "sampling.max_tokens": max_tokens,
        "output.path": None if output is None else str(output),
        "output.format": output_format,
        "engine.kind": engine,
        "run.metrics_port": metrics_port,
    }
    with ending(as_json=as_json):
        job, folder = job_and_dir(source, options, settings or [], run_dir)
        with stopping() as stop, watching(job.run.metrics_port, as_json=as_json) as watch:
            summary = pipeline.run(job, folder, watch, stop)
        render.show_summary(summary, as_json=as_json)
        leave(summary.counts.share_without_answer > job.run.max_failed)


@app.command()
def validate(
    source: Source,
    model: Model = None,
    prompt: PromptText = None,
    system: System = None,
    column: Column = None,
    limit: Limit = None,
    settings: Set = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Check every row without a GPU: what would be rejected, and why."""
    from batchwright import pipeline

    options = about_the_data(model, prompt, system, column, limit)
    with ending(as_json=as_json):
        job = job_alone(source, options, settings or [])
        with stopping() as stop:
            report = pipeline.validate(job, stop, render.validation_lines())
        render.show_validation(report, as_json=as_json)
        leave(report.share_rejected > job.run.max_failed)


@app.command()
def profile(
    source: Source,
    model: Model = None,
    prompt: PromptText = None,
    system: System = None,
    column: Column = None,
    max_tokens: MaxTokens = None,
    limit: Limit = None,
    sample: Sample = None,
    cache_tokens: Annotated[
        int | None, typer.Option(help="Size of the prefix cache for the hit rates.")
    ] = None,
    page: Page = None,
    settings: Set = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Measure the work without a GPU: token lengths, duplicates, shared prefixes."""
    from batchwright import pipeline
    from batchwright.pages.blocks import write_page
    from batchwright.pages.profile import profile_page
    from batchwright.profile.show import profile_lines

    options = {
        **about_the_data(model, prompt, system, column, limit),
        "sampling.max_tokens": max_tokens,
    }
    with ending(as_json=as_json):
        job, folder = job_and_dir(source, options, settings or [], None)
        with stopping() as stop:
            found = pipeline.profile(
                job,
                stop,
                render.count_lines(),
                sample=sample,
                cache_tokens=cache_tokens,
                run_dir=folder,
            )
        render.show_lines(profile_lines(found), found.as_json(), as_json=as_json)
        if page is not None:
            write_page(page, profile_page(found, job.input.path))


@app.command()
def plan(
    source: Source,
    model: Model = None,
    prompt: PromptText = None,
    system: System = None,
    column: Column = None,
    max_tokens: MaxTokens = None,
    limit: Limit = None,
    sample: Sample = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Kind of card; this machine's own unless named.")
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", help="How many cards.")] = None,
    page: Page = None,
    settings: Set = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Choose the engine's settings for these rows and cards, with the reason for each."""
    from batchwright import pipeline
    from batchwright.pages.blocks import write_page
    from batchwright.pages.plan import plan_page
    from batchwright.plan.explain import explain

    options = {
        **about_the_data(model, prompt, system, column, limit),
        "sampling.max_tokens": max_tokens,
        "hardware.gpu": gpu,
        "hardware.count": gpus,
    }
    with ending(as_json=as_json):
        job, folder = job_and_dir(source, options, settings or [], None)
        with stopping() as stop:
            say = render.count_lines()
            chosen, lengths = pipeline.plan(job, stop, say, sample=sample, run_dir=folder)
        lines = [*explain(chosen), "", "For the job file", *render.as_yaml(chosen)]
        render.show_lines(lines, chosen.as_json(), as_json=as_json)
        if page is not None:
            write_page(page, plan_page(chosen, lengths, job.input.path))


@app.command()
def pilot(
    source: Source,
    model: Model = None,
    prompt: PromptText = None,
    system: System = None,
    column: Column = None,
    max_tokens: MaxTokens = None,
    engine: EngineKind = None,
    limit: Limit = None,
    rows: Annotated[
        int | None, typer.Option("--rows", help="Rows of the pilot; 1,000 unless given.")
    ] = None,
    sweep: Annotated[  # noqa: FBT002
        bool, typer.Option("--sweep", help="Try settings around the run's own, keep the fastest.")
    ] = False,
    sweep_minutes: Annotated[
        float, typer.Option("--sweep-minutes", min=0.1, help="Time for the sweep.")
    ] = 10.0,
    page: Page = None,
    run_dir: Dir = None,
    settings: Set = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Run a sample on the real engine: hours, GPU hours and dollars of the job, with an interval."""
    from batchwright import pipeline
    from batchwright.cli.tables import sweep_lines
    from batchwright.foresight.sweep import sweep as sweep_settings
    from batchwright.pages.blocks import write_page
    from batchwright.pages.pilot import pilot_page
    from batchwright.pilot.show import pilot_lines

    options = {
        **about_the_data(model, prompt, system, column, limit),
        "sampling.max_tokens": max_tokens,
        "engine.kind": engine,
        "run.pilot_rows": rows,
    }
    with ending(as_json=as_json):
        job, folder = job_and_dir(source, options, settings or [], run_dir)
        with stopping() as stop:
            with watching(job.run.metrics_port, as_json=as_json) as watch:
                report, folder = pipeline.pilot(job, folder, watch, stop)
            found = sweep_settings(folder, sweep_minutes, render.say, stop) if sweep else None
        table = ["", *sweep_lines(found)] if found else []
        lines = [*pilot_lines(report), *table, "", f"go on  batchwright run {folder}"]
        value = {**report.as_json(), "run_dir": str(folder)}
        value |= {"sweep": found.as_json()} if found else {}
        render.show_lines(lines, value, as_json=as_json)
        if page is not None:
            write_page(page, pilot_page(report, job.input.path))


@app.command()
def retry(
    run_dir: RunDir,
    code: Annotated[
        list[str] | None, typer.Option("--code", help="Only rows that failed with this code.")
    ] = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Run the failed rows of a finished run again."""
    from batchwright import pipeline

    with ending(as_json=as_json):
        _, _, job = pipeline.open_run(run_place(run_dir))
        with stopping() as stop, watching(job.run.metrics_port, as_json=as_json) as watch:
            summary = pipeline.retry(run_place(run_dir), watch, stop, code or [])
        render.show_summary(summary, as_json=as_json)
        leave(summary.counts.share_without_answer > job.run.max_failed)


@app.command()
def status(run_dir: RunDir, as_json: AsJson = False) -> None:  # noqa: FBT002
    """Where a run stands, while it runs and after."""
    from batchwright import pipeline

    with ending(as_json=as_json):
        show_status(run_dir, pipeline.status(run_place(run_dir)), as_json=as_json)


@app.command()
def verify(run_dir: RunDir, as_json: AsJson = False) -> None:  # noqa: FBT002
    """Prove that every row has exactly one fate; exit 1 if not."""
    from batchwright import pipeline

    with ending(as_json=as_json):
        verification = pipeline.verify(run_place(run_dir))
        show_verification(verification, as_json=as_json)
        if not verification.passed:
            raise typer.Exit(1)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--dir", help="Folder for the demo's files.")] = Path(
        "batchwright-demo"
    ),
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """A real model answers real rows on this machine's CPU; nothing else is needed."""
    from batchwright.cli.demo import run_demo

    with ending(as_json=as_json), stopping() as stop:
        run_demo(output, stop, as_json=as_json)


app.command()(export)
app.command("rows")(rows)
app.command("logs")(logs)
app.command()(worker)
app.command()(report)
app.command()(top)
app.command("run-batch", context_settings=VLLM_WORDS)(run_batch)
app.command("load")(load_run)
app.command("diagnose")(diagnose_run)
app.add_typer(k8s)


@app.callback(invoke_without_command=True)
def version(
    *,
    show: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
) -> None:
    """Offline batch inference for language models: a dataset in, every row's answer out."""
    if show:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Entry point of the `batchwright` command."""
    leave_torch_out()
    run_to_the_end(app)
