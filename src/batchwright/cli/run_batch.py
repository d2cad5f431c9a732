"""`run-batch`: the command line and the files of `vllm run-batch`, on a run that can be resumed."""

from __future__ import annotations

import os
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchwright.cli import render
from batchwright.cli.arguments import AsJson, Set
from batchwright.cli.ending import ending, leave, stopping

if TYPE_CHECKING:
    from batchwright.config.job import Job
    from batchwright.deliver import Summary

# Whatever this command does not know is an argument of vLLM's engine.
VLLM_WORDS = {"allow_extra_args": True, "ignore_unknown_options": True}

_URL = ("http://", "https://")

InputFile = Annotated[
    str, typer.Option("--input-file", "-i", help="OpenAI batch lines: file or URL.")
]
OutputFile = Annotated[str, typer.Option("--output-file", "-o", help="One line per input line.")]
TmpDir = Annotated[
    Path | None,
    typer.Option(
        "--output-tmp-dir", help="Where the run directory is made; beside "
        "the output file unless given."
    ),
]  # fmt: skip


def run_batch(
    context: typer.Context,
    input_file: InputFile,
    output_file: OutputFile,
    model: Annotated[str | None, typer.Option("--model", help="Model folder or hub id.")] = None,
    output_tmp_dir: TmpDir = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="YAML file of further options.")
    ] = None,
    settings: Set = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Take the options and files of `vllm run-batch`, and any engine argument in vLLM's spelling."""
    with ending(as_json=as_json):
        output = _local_output(output_file)
        run_dir = (output_tmp_dir or output.parent) / f"{output.name}.run"
        arguments = _arguments(context.args, model, config)
        source = _local_input(input_file, run_dir)
        job = _job(source, arguments, settings or [], run_dir)
        _check_options(job)
        with stopping() as stop, render.watching(as_json=as_json) as watch:
            summary = _run(job, run_dir, watch, stop)
        _deliver(Path(summary.results[0]), output)
        _show(summary, output, as_json=as_json)
        leave(summary.counts.share_without_answer > job.run.max_failed)


def _arguments(words: Sequence[str], model: str | None, config: Path | None) -> dict[str, Any]:
    """All options by vLLM's names: the file's, then the command line's on top."""
    from batchwright.config.vllm_words import engine_fields, parse_words

    given = {} if config is None else _config(config)
    named = {} if model is None else {"model": model}
    return {**given, **named, **parse_words(words, engine_fields())}


def _config(path: Path) -> dict[str, Any]:
    import yaml

    from batchwright.core.errors import JobError

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise JobError(f"--config {path}: {error}") from None
    if not isinstance(data, dict):
        raise JobError(f"--config {path}: not a list of `option: value`")
    return {str(name).replace("-", "_"): value for name, value in data.items()}


def _job(source: str, arguments: Mapping[str, Any], settings: Sequence[str], run_dir: Path) -> Job:
    """The job that vLLM's options mean, with the model's own sampling defaults written into it."""
    from batchwright.config.from_vllm import generation_defaults, job_data
    from batchwright.config.load import parse_settings
    from batchwright.equip.choosing import with_engine

    data, idle = job_data(arguments)
    if idle:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        render.say(f"without effect here: {names}")
    data["name"] = "run-batch"
    data["input"] = {"path": source, "format": "openai-batch", "duplicate_ids": "allow"}
    data["output"] = {"format": "vllm-batch"}
    data["model"].setdefault("served_name", data["model"]["name"] or None)
    overrides = parse_settings(settings)
    job, why = with_engine(_with_task(data, overrides), run_dir)
    if why:
        render.say(why)
    if job.task == "embed":
        return job
    found = _generation_config(job, arguments)
    override = arguments.get("override_generation_config") or {}
    as_vllm = {"schema_retries": 0, "invalid_output": "keep"}
    data["sampling"] = {**generation_defaults(found, override), **as_vllm}
    if job.engine.kind == "vllm":  # its own choice of what enforces a schema gives its own answers
        options = data.setdefault("engine", {}).setdefault("options", {})
        options.setdefault("structured_outputs_config", {"backend": "auto"})
    return with_engine(_with_task(data, overrides), run_dir)[0]


def _with_task(data: dict[str, Any], overrides: Mapping[str, Any]) -> Job:
    from batchwright.cli.options import with_absolute_paths
    from batchwright.config.load import make_job
    from batchwright.foresight.survey import with_task_of_lines

    return with_task_of_lines(with_absolute_paths(make_job(data, overrides)))


def _check_options(job: Job) -> None:
    """Find out now, and not when the engine starts, that an option is misspelt."""
    from batchwright.config.vllm_words import engine_fields
    from batchwright.engines.options import refuse_unknown
    from batchwright.engines.vllm_setup import OWN_OPTIONS

    fields = engine_fields() if job.engine.kind == "vllm" else {}
    if fields:
        refuse_unknown(job.engine.options, {*fields, *OWN_OPTIONS}, "vllm")


def _generation_config(job: Job, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What `--generation-config` names: the model's own, none (`vllm`), or that of a folder."""
    from batchwright.tokens.files import read_json

    where = arguments.get("generation_config", "auto")
    name = job.model.name if where == "auto" else str(where)
    if where == "vllm" or not name or job.engine.kind == "fake":
        return {}
    return read_json(name, "generation_config.json", job.model.revision)


def _run(job: Job, run_dir: Path, watch: render.Watch, stop: threading.Event) -> Summary:
    """Run, or go on; a finished run of another job has been delivered and makes room."""
    from batchwright import pipeline
    from batchwright.core.errors import ResumeRefused

    try:
        return pipeline.run(job, run_dir, watch, stop)
    except ResumeRefused as refused:
        if not _is_finished(run_dir):
            hint = f"Change it back to go on, or remove {run_dir} to start afresh."
            raise ResumeRefused(refused.message, hint) from None
    shutil.rmtree(run_dir)
    return pipeline.run(job, run_dir, watch, stop)


def _is_finished(run_dir: Path) -> bool:
    from batchwright.rundir import layout

    return (run_dir / layout.SUCCESS).is_file()


def _local_output(name: str) -> Path:
    from batchwright.core.errors import JobError

    if name.startswith(_URL):
        hint = "Write to a file, and send it when it is whole: curl -T FILE URL."
        raise JobError(f"-o {name}: uploading is not supported", hint)
    path = Path(name).expanduser()
    if path.is_dir():
        raise JobError(f"-o {name} is a folder", "Name the file to write.")
    return path


def _local_input(name: str, run_dir: Path) -> str:
    """The input as a file; one at a URL is fetched once, so that a resume reads the same."""
    from batchwright.core.errors import InputError

    if not name.startswith(_URL):
        return name
    path = run_dir.with_name(f"{run_dir.name}.input.jsonl")
    if path.is_file() and not _is_finished(run_dir):
        return str(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}")
    try:
        with urllib.request.urlopen(name, timeout=60) as answer, partial.open("wb") as file:  # noqa: S310
            shutil.copyfileobj(answer, file, 2**20)
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise InputError(f"{name} cannot be fetched: {error}") from error
    partial.replace(path)
    return str(path)


def _deliver(result: Path, output: Path) -> None:
    """Copy the results to where they are wanted, whole or not at all."""
    from batchwright.core.errors import StorageError

    partial = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(result, partial)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(output)
    except OSError as error:
        partial.unlink(missing_ok=True)
        hint = f"The answers are in {result}; free some space and start the same command again."
        raise StorageError(f"cannot write {output}: {error.strerror}", hint) from error


def _show(summary: Summary, output: Path, *, as_json: bool) -> None:
    if as_json:
        render.show_json({**summary.as_json(), "output": str(output)})
        return
    render.show_summary(summary, as_json=False)
    render.say(f"output file: {output}")
