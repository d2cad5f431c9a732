"""A job file, options and `--set` to a Job; every error names its file and line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from batchwright.config.job import Job
from batchwright.core.errors import JobError

# Where a job file may name a path; relative ones are meant relative to the file.
_PATHS = (("input", "path"), ("output", "path"), ("run", "dir"), ("model", "chat_template"))
_MAYBE_PATHS = (("model", "name"), ("model", "tokenizer"))


def load_job(path: Path, overrides: Mapping[str, Any] | None = None) -> Job:
    """Read a job file.

    Args:
        path: a YAML (or JSON) file.
        overrides: dotted key to value, applied on top (`run.replicas` to 2).

    Raises:
        JobError: with file and line, what is wrong, and the nearest known name.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"cannot read the job file {path}: {error}") from error
    data, lines = _parse(text, path)
    _resolve_paths(data, path.parent)
    data.setdefault("name", path.stem)
    return make_job(data, overrides or {}, source=str(path), lines=lines)


def make_job(
    data: dict[str, Any],
    overrides: Mapping[str, Any],
    *,
    source: str = "the options",
    lines: Mapping[tuple[str, ...], int] | None = None,
) -> Job:
    """Plain data and overrides to a checked Job."""
    for dotted, value in overrides.items():
        _set(data, dotted, value)
    try:
        return Job.model_validate(data)
    except ValidationError as error:
        set_here = {tuple(dotted.split(".")) for dotted in overrides}
        problems = [
            _describe(problem, source, lines or {}, set_here)
            for problem in error.errors(include_url=False)
        ]
        raise JobError(
            "\n".join(problems), "See docs/reference/job-file.md for every key."
        ) from None


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """`a.b=value` texts to dotted keys; values are read as YAML (numbers, lists, true)."""
    parsed: dict[str, Any] = {}
    for setting in settings:
        dotted, equals, value = setting.partition("=")
        if not equals or not dotted:
            raise JobError(
                f"--set {setting}: expected key=value", "For instance --set run.replicas=2"
            )
        try:
            parsed[dotted.strip()] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise JobError(f"--set {setting}: {error}") from error
    return parsed


def _parse(text: str, path: Path) -> tuple[dict[str, Any], dict[tuple[str, ...], int]]:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise JobError(f"{where}: not valid YAML: {getattr(error, 'problem', error)}") from error
    if not isinstance(data, dict):
        raise JobError(f"{path}: a job file is a list of sections (input:, model:, …)")
    lines: dict[tuple[str, ...], int] = {}
    _collect_lines(node, (), lines)
    return data, lines


def _collect_lines(
    node: yaml.Node | None, at: tuple[str, ...], lines: dict[tuple[str, ...], int]
) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*at, str(key.value))
            lines[place] = key.start_mark.line + 1
            _collect_lines(value, place, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            place = (*at, str(index))
            lines[place] = value.start_mark.line + 1
            _collect_lines(value, place, lines)


def _resolve_paths(data: dict[str, Any], folder: Path) -> None:
    for section, key in _PATHS:
        part = data.get(section)
        if isinstance(part, dict) and part.get(key):
            part[key] = _resolved(part[key], folder)
    for section, key in _MAYBE_PATHS:
        part = data.get(section)
        if (
            isinstance(part, dict)
            and isinstance(part.get(key), str)
            and (folder / part[key]).is_dir()
        ):
            part[key] = str(folder / part[key])


def _resolved(value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [_resolved(one, folder) for one in value]
    if not isinstance(value, str) or "://" in value:
        return value
    return str(folder / value)


def _set(data: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, key = dotted.split(".")
    place = data
    for section in sections:
        inner = place.setdefault(section, {})
        if not isinstance(inner, dict):
            raise JobError(f"--set {dotted}: {section} is not a section")
        place = inner
    place[key] = value


def _describe(
    problem: Any,
    source: str,
    lines: Mapping[tuple[str, ...], int],
    set_here: set[tuple[str, ...]],
) -> str:
    place = tuple(str(step) for step in problem["loc"])
    name = ".".join(place)
    if place in set_here:
        where = "options"
    else:
        line = next(
            (lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in lines), None
        )
        where = f"{source}:{line}" if line else source
    if problem["type"] == "extra_forbidden":
        return f"{where}: unknown key {name}{_nearest(place)}"
    if problem["type"] == "missing":
        return f"{where}: {name} is missing"
    message = problem["msg"]
    return f"{where}: {name}: {message[:1].lower()}{message[1:]} (got {problem['input']!r})"


def _nearest(place: tuple[str, ...]) -> str:
    model: type[BaseModel] = Job
    for step in place[:-1]:
        field = model.model_fields.get(step)
        if field is None or not (
            isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        ):
            return ""
        model = field.annotation
    close = difflib.get_close_matches(place[-1], model.model_fields, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known here: {', '.join(sorted(model.model_fields))}"
