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
from batchwright.core.stores import absolute_target

# The keys that lead to a value, and the line of the job file on which each stands.
Place = tuple[str, ...]
Lines = dict[Place, int]

# Where a job file may name a path; relative ones are meant relative to the file.
_PATHS = (
    ("input", "path"), ("output", "path"), ("run", "dir"), ("model", "chat_template"),
    ("media", "allowed_roots"),
)  # fmt: skip
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
    _fill_empty_sections(data)
    _resolve_paths(data, path.parent)
    data.setdefault("name", path.stem)
    return make_job(data, overrides or {}, source=str(path), lines=lines)


def make_job(
    data: dict[str, Any],
    overrides: Mapping[str, Any],
    *,
    source: str = "the options",
    lines: Lines | None = None,
) -> Job:
    """Plain data and overrides to a checked Job."""
    for dotted, value in overrides.items():
        _set(data, dotted, value)
    try:
        return Job.model_validate(data)
    except ValidationError as error:
        set_here = {tuple(dotted.split(".")) for dotted in overrides}
        problems = [
            _describe(place, same_place, source, lines or {}, set_here)
            for place, same_place in _by_place(error, data).items()
        ]
        raise JobError(
            "\n".join(problems), "See docs/reference/job-file.md for every key."
        ) from None


def make_section(kind: type[BaseModel], data: dict[str, Any], source: str) -> Any:
    """Plain data to one checked section. Raises JobError."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        problems = [
            f"{source}{'.'.join(map(str, one['loc'][:1]))}: {one['msg']}" for one in error.errors()
        ]
        raise JobError(problems[0]) from None


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


def _parse(text: str, path: Path) -> tuple[dict[str, Any], Lines]:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        line = text.splitlines()[mark.line : mark.line + 1] if mark else []
        raise JobError(
            f"{where}: not valid YAML: {getattr(error, 'problem', error)}",
            _yaml_hint("".join(line)),
        ) from error
    if not isinstance(data, dict):
        raise JobError(f"{path}: a job file is a list of sections (input:, model:, …)")
    lines: Lines = {}
    _collect_lines(node, (), lines, path)
    return data, lines


def _yaml_hint(line: str) -> str:
    """What is mostly wrong with such a line."""
    if "{{" in line or "{%" in line:
        return "Put a template into quotes, or below `template: |`: YAML reads braces itself."
    if "\t" in line:
        return "Indent with spaces: YAML knows no tabs there."
    if line.count(": ") > 1:
        return "Put a text with a colon and a space in it into quotes."
    return ""


def _collect_lines(node: yaml.Node | None, at: Place, lines: Lines, path: Path) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place, line = (*at, str(key.value)), key.start_mark.line + 1
            if place in lines:
                # YAML would keep the last one and lose the other's settings in silence.
                raise JobError(
                    f"{path}:{line}: the key {'.'.join(place)} stands there twice, first in line "
                    f"{lines[place]}",
                    "Put the two together, or remove one.",
                )
            lines[place] = line
            _collect_lines(value, place, lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            place = (*at, str(index))
            lines[place] = value.start_mark.line + 1
            _collect_lines(value, place, lines, path)


def _fill_empty_sections(data: dict[str, Any]) -> None:
    """A section whose keys are all commented out is null in YAML."""
    for name, field in Job.model_fields.items():
        if _section(field.annotation) and name in data and data[name] is None:
            data[name] = {}
    engine = data.get("engine")
    if isinstance(engine, dict) and "options" in engine and engine["options"] is None:
        engine["options"] = {}


def _resolve_paths(data: dict[str, Any], folder: Path) -> None:
    for section, key in _PATHS:
        part = data.get(section)
        if isinstance(part, dict) and part.get(key) and not _is_name(key, part[key], folder):
            part[key] = _resolved(part[key], folder)
    for section, key in _MAYBE_PATHS:
        part = data.get(section)
        name = part.get(key) if isinstance(part, dict) else None
        if part and isinstance(name, str) and name and Path(_resolved(name, folder)).is_dir():
            part[key] = _resolved(name, folder)
    model = data.get("model")
    for entry in data.get("load") or ():
        if isinstance(entry, dict) and isinstance(entry.get("to"), str):
            entry["to"] = absolute_target(entry["to"], str(folder.absolute()))
    adapters = model.get("adapters") if isinstance(model, dict) else None
    if isinstance(adapters, dict):
        for name, path in adapters.items():
            if isinstance(path, str) and path and Path(_resolved(path, folder)).is_dir():
                adapters[name] = _resolved(path, folder)


def _is_name(key: str, value: Any, folder: Path) -> bool:
    """Whether a chat template is given by its name among the model's own: a word, no file."""
    word = key == "chat_template" and isinstance(value, str) and not set("./~") & set(value)
    return word and not (folder / value).is_file()


def _resolved(value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [_resolved(one, folder) for one in value]
    if not isinstance(value, str) or "://" in value:
        return value
    try:
        return str(folder / Path(value).expanduser())
    except RuntimeError:  # no home, or a name that only looks like one: ~backup.jsonl
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


def _by_place(error: ValidationError, data: dict[str, Any]) -> dict[Place, list[Any]]:
    """The problems of each place; a value that fits no type of several has one for each type."""
    found: dict[Place, list[Any]] = {}
    for problem in error.errors(include_url=False):
        found.setdefault(_place(problem, data), []).append(problem)
    # The type that fits as far as to what is within is the one that was meant.
    outer = {place[:n] for place in found for n in range(len(place))}
    return {place: problems for place, problems in found.items() if place not in outer}


def _place(problem: Any, data: Any) -> Place:
    """The keys that lead to a problem, without the names that pydantic gives to types."""
    place = []
    for step in problem["loc"]:
        try:
            data = data[step]
        except (LookupError, TypeError):
            continue
        place.append(str(step))
    if problem["type"] == "missing" or not place:
        place.append(str(problem["loc"][-1]))
    return tuple(place)


def _describe(
    place: Place, problems: list[Any], source: str, lines: Lines, set_here: set[Place]
) -> str:
    name = ".".join(place)
    steps = [place[:n] for n in range(len(place), 0, -1)]
    line = next((lines[step] for step in steps if step in lines), None)
    where = f"{source}:{line}" if line else source
    if not set_here.isdisjoint(steps):
        where = "options"
    problem = problems[0]
    if problem["type"] == "extra_forbidden":
        return f"{where}: unknown key {name}{_nearest(place)}"
    if problem["type"] == "value_error" and isinstance(problem["input"], Mapping):
        text = str(problem["ctx"]["error"])  # of several keys, as a rule; one of them may be named
        own_key = text.partition(":")[0] in _fields(place)
        return f"{where}: {name}{'.' if own_key else ': '}{text}"
    if problem["type"] == "missing":
        return f"{where}: {name} is missing"
    known = _fields(place)
    if problem["type"] == "model_type" and known:
        return (
            f"{where}: {name} is a section, with keys of its own: {', '.join(sorted(known))} "
            f"(got {problem['input']!r})"
        )
    first, *others = dict.fromkeys(one["msg"] for one in problems)
    message = " or ".join([first, *(other.removeprefix("Input should be ") for other in others)])
    return f"{where}: {name}: {message[:1].lower()}{message[1:]} (got {problem['input']!r})"


def _section(annotation: Any) -> type[BaseModel] | None:
    is_section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_section else None


def _fields(place: Place) -> list[str]:
    """The keys of a section; none where there is no section."""
    model: type[BaseModel] = Job
    for step in place:
        field = model.model_fields.get(step)
        section = field and _section(field.annotation)
        if not section:
            return []
        model = section
    return list(model.model_fields)


def _nearest(place: Place) -> str:
    known = _fields(place[:-1])
    if not known:
        return ""
    elsewhere = [
        f"{section}.{place[-1]}" for section in _fields(()) if place[-1] in _fields((section,))
    ]
    if elsewhere:  # in the wrong section, or in none
        return f"; did you mean {' or '.join(elsewhere)}?"
    close = difflib.get_close_matches(place[-1], known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]}?"
    engine = "; the engine's own options stand in engine.options" if place[0] == "engine" else ""
    return f"; known here: {', '.join(sorted(known))}{engine}"
