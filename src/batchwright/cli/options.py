"""A command's source and options to a job and its run directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchwright.cli import render
from batchwright.config.job import Job
from batchwright.config.load import load_job, make_job, parse_settings
from batchwright.core.errors import JobError
from batchwright.core.stores import absolute_target
from batchwright.demo.use import DEMO, embedded_model
from batchwright.rundir.locations import Location, is_address, location_of

if TYPE_CHECKING:
    from batchwright.rundir.manifest import Manifest

_JOB_FILES = {".yaml", ".yml"}


def about_the_data(
    model: str | None,
    prompt: str | None,
    system: str | None,
    column: str | None,
    limit: int | None,
) -> dict[str, Any]:
    """The options that every command over rows has, as job keys."""
    return {
        "model.name": model,
        "prompt.template": prompt,
        "prompt.system": system,
        "prompt.column": column,
        "input.limit": limit,
    }


def job_and_dir(
    source: str, options: Mapping[str, Any], settings: Sequence[str], run_dir: Location | None
) -> tuple[Job, Location]:
    """The job that a command means, and the place that its run lives in.

    Args:
        source: a job file, data, or the folder of an earlier run.
        options: dotted job key to the value of a plain option; None if it was not given.
        settings: texts of `--set`.
        run_dir: `--dir`.
    """
    place = location_of(str(run_dir)) if run_dir is not None else None
    job, folder = _read(source, options, settings, place)
    return completed(job, folder), folder


def job_alone(source: str, options: Mapping[str, Any], settings: Sequence[str]) -> Job:
    """The same for a command that has nothing to do with a run: no run directory is looked at."""
    job, _ = _read(source, options, settings, None)
    return completed(job, None)


def completed(job: Job, run_dir: Location | None) -> Job:
    """The job with all filled in that this machine can tell: paths, task, engine, model."""
    from batchwright.equip.choosing import with_engine
    from batchwright.foresight.survey import with_task_of_lines

    job, why = with_engine(with_task_of_lines(with_absolute_paths(job)), run_dir)
    if why:
        render.say(why)
    if job.model.name == DEMO and not Path(DEMO).is_dir() and job.engine.kind != "fake":
        model = job.model.model_copy(update={"name": str(embedded_model())})
        job = job.model_copy(update={"model": model})
    return job


def job_for_elsewhere(
    source: str, options: Mapping[str, Any], settings: Sequence[str]
) -> tuple[Job, Location]:
    """The same for a job that other machines run: this one may not be able to see its data.

    `engine.kind: auto` stays: they see the model, and choose.
    """
    job, folder = _read(source, options, settings, None)
    job = with_absolute_paths(job)
    # What looks like an id of the hub may be a folder that only this machine has.
    adapters = {name: _if_there(path) for name, path in job.model.adapters.items()}
    model = job.model.model_copy(update={"adapters": adapters})
    return job.model_copy(update={"model": model}), folder


def with_absolute_paths(job: Job) -> Job:
    """The job as it reads from any folder: a run is resumed from wherever one happens to be."""
    paths = job.input.path
    absolute = [_absolute(path) for path in paths] if isinstance(paths, list) else _absolute(paths)
    model = job.model
    updates = {
        key: _absolute(value)
        for key in ("name", "tokenizer", "chat_template")
        if (value := getattr(model, key)) and Path(value).exists()
    }
    output = job.output.path and _absolute(job.output.path)
    here = str(Path.cwd())
    loads = [one.model_copy(update={"to": absolute_target(one.to, here)}) for one in job.load]
    return job.model_copy(
        update={
            "input": job.input.model_copy(update={"path": absolute}),
            "model": model.model_copy(update=updates),
            "output": job.output.model_copy(update={"path": output}),
            "load": loads,
        }
    )


def _if_there(path: str) -> str:
    return _absolute(path) if Path(path).exists() else path


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).expanduser().absolute())


def _read(
    source: str, options: Mapping[str, Any], settings: Sequence[str], run_dir: Location | None
) -> tuple[Job, Location]:
    overrides = {key: value for key, value in options.items() if value is not None}
    overrides |= parse_settings(settings)
    path = Path(source)
    run = _run_at(source)
    if run is not None:
        return make_job(run[1].job, overrides, source=f"{run[0]}/manifest.json"), run_dir or run[0]
    if path.suffix in _JOB_FILES:
        job = load_job(path, overrides)
    else:
        data = {"name": _name_of(source), "input": {"path": source}}
        job = make_job(data, overrides)
    return job, run_dir or run_dir_of(job)


def run_place(run_dir: str) -> Location:
    """RUN of a command."""
    return location_of(run_dir)


def absolute(place: str) -> str:
    """A place for results that means the same in any working directory."""
    return place if is_address(place) else str(Path(place).absolute())


def run_dir_of(job: Job) -> Location:
    """Where the job's run lives unless `--dir` says otherwise."""
    filled = job.run.dir.replace("{name}", job.name)
    if "{" in filled or "}" in filled:
        raise JobError(f"run.dir: {job.run.dir}: only {{name}} can be filled in")
    return location_of(filled)


def _run_at(source: str) -> tuple[Location, Manifest] | None:
    """The run that a source is the place of, if it is one."""
    if any(char in source for char in "*?[") and is_address(source):
        return None
    from batchwright.rundir.manifest import run_if_there

    place = location_of(source)
    found = run_if_there(place)
    return None if found is None else (place, found[1])


def _name_of(source: str) -> str:
    """`data/reviews.jsonl.gz` to `reviews`; a glob or folder to its last plain name.

    `*.jsonl` and `.` are named after the folder that they mean.
    """
    place = source if is_address(source) else Path(source).absolute()
    for part in reversed(Path(place).parts):
        name = part.split(".")[0]
        if name and not set(name) & set("*?[/"):
            return name
    return "job"
