"""Write the parts of the docs that repeat the source, or check that they are up to date.

python scripts/make_reference.py            # write
python scripts/make_reference.py --check    # write nothing, exit 1 if a file is out of date
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
import typer

from batchwright.cli.app import app
from batchwright.config.job import Job
from batchwright.core import errors
from batchwright.core.remedies import REMEDIES
from batchwright.core.sampling import PRESETS
from batchwright.engines.fake import FakeOptions
from batchwright.engines.fatal_lines import KNOWN
from batchwright.validate.sampling import DEFAULT_MAX_TOKENS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "batchwright"

NOTE = "<!-- Made by scripts/make_reference.py: change the source, then run it again. -->"
BEGIN = "<!-- {}: begin (made by scripts/make_reference.py) -->"
END = "<!-- {}: end -->"

# The order in which the source is best read; what is missing here comes last, by name.
READING_ORDER = (
    "pipeline", "prepare", "order", "worker", "joining", "deliver", "wiring",
    "drafts", "ordering", "working", "equip", "foresight", "running", "results", "views",
    "read", "validate", "tokens", "media", "profile", "plan", "pilot", "constraints", "engines",
    "executors", "write", "load", "k8s", "diagnose", "pages", "metrics",
    "machine", "rundir", "config", "core", "cli", "handle", "ray", "deploying", "demo",
)  # fmt: skip

EXIT_OK = (0, "Done.")


def make_all() -> dict[Path, str]:
    """Every generated file with its content."""
    reference = ROOT / "docs" / "reference"
    readme, contributing = ROOT / "README.md", ROOT / "CONTRIBUTING.md"
    troubleshooting = ROOT / "docs" / "how-to" / "troubleshooting.md"
    return {
        readme: with_block(readme, "tree", fenced(tree())),
        contributing: with_block(contributing, "arrows", fenced(arrows())),
        troubleshooting: with_block(troubleshooting, "faults", faults()),
        reference / "job-file.md": job_file_page(),
        ROOT / "docs" / "job.schema.json": job_schema(),
        reference / "cli.md": cli_page(),
        reference / "errors.md": errors_page(),
        reference / "modules.md": modules_page(),
    }


# --- README and CONTRIBUTING: the source tree and its arrows ------------------------------------


def with_block(page: Path, name: str, text: str) -> str:
    """A page with fresh text between two markers."""
    begin, end = BEGIN.format(name), END.format(name)
    head, found_begin, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found_end, tail = rest.partition(end)
    if not (found_begin and found_end):
        raise SystemExit(f"{page.name} lacks the markers {begin} and {end}")
    return f"{head}{begin}\n\n{text}\n\n{end}{tail}"


def fenced(text: str) -> str:
    """Text as it is."""
    return f"```text\n{text}\n```"


def faults() -> str:
    """What is known of why engines end: one row for each cause and cure."""
    rows = dict.fromkeys(
        f"| `{known.code}` | {_without_names(known.summary)} | {_without_names(known.remedy)} |"
        for known in KNOWN
    )
    return "\n".join(["| code | what happened | what to do |", "|---|---|---|", *rows])


def _without_names(text: str) -> str:
    """A text with … for what the line itself says."""
    return _one_line(re.sub(r"\{\w+\}", "…", text))


def arrows() -> str:
    """The layers as import-linter holds them, the upper ones first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["id"] == "layers")
    return "\n".join(layer.replace(" | ", ", ") for layer in layers)


def modules_page() -> str:
    """Every module with its phrase."""
    lines = ["# Modules", "", NOTE, "", "The first line of each one's docstring, in reading order."]
    for path in _in_reading_order(PACKAGE):
        if path.is_file():
            lines += ["", f"## {path.name}", "", f"{phrase(path)}."]
            continue
        lines += ["", f"## {path.name}/", "", f"{phrase(path / '__init__.py')}.", ""]
        modules = [one for one in sorted(path.glob("*.py")) if one.name != "__init__.py"]
        lines += [f"- `{one.name}`: {phrase(one)}" for one in modules]
    return "\n".join([*lines, ""])


def tree() -> str:
    """What stands at the top of the source, with the first line of its docstring."""
    lines = [
        (path.name, phrase(path))
        if path.is_file()
        else (f"{path.name}/", phrase(path / "__init__.py"))
        for path in _in_reading_order(PACKAGE)
    ]
    width = max(len(name) for name, _ in lines) + 2
    return "\n".join(["src/batchwright/", *(f"  {name:{width}}{text}" for name, text in lines)])


def phrase(module: Path) -> str:
    """First line of a module's docstring, without its full stop."""
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].removesuffix(".")


def _in_reading_order(folder: Path) -> list[Path]:
    known = {name: place for place, name in enumerate(READING_ORDER)}
    entries = [path for path in folder.iterdir() if _has_code(path)]
    return sorted(entries, key=lambda path: (known.get(path.stem, len(known)), path.name))


def _has_code(path: Path) -> bool:
    return path.suffix == ".py" or (path / "__init__.py").is_file()


# --- job file ----------------------------------------------------------------------------------


def job_schema() -> str:
    """JSON Schema of the job file, for editors."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Job.model_json_schema()}
    return orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode() + "\n"


def job_file_page() -> str:
    """Every key of the job file."""
    schema = Job.model_json_schema()
    sections = schema["$defs"]
    plain = {name: field for name, field in schema["properties"].items() if not _ref(field)}
    lines = [
        NOTE, "", "# The job file", "",
        "A job file is YAML. Only `input.path` is required, and a model unless the engine is the "
        "fake one. A key that is not known is an error that names the nearest known key and the "
        "line. `--set section.key=value` sets any key from the command line, after the file is "
        "read.", "",
        "Relative paths in a job file (`input.path`, `output.path`, `run.dir`, "
        "`model.chat_template`, and `model.name` or `model.tokenizer` where such a folder exists) "
        "are meant relative to the file. Those given by `--set` or an option are meant relative "
        "to the current folder, and so is the default of `run.dir`.", "",
        "Editors that read JSON Schema can check a job file against "
        "[job.schema.json](../job.schema.json).", "",
        "## Top level", "", *_field_table(plain, sections, required=()),
        "", "Each entry of `load` has:", "", *_load_table(sections["LoadTarget"], sections),
    ]  # fmt: skip
    for name, field in schema["properties"].items():
        reference = _ref(field)
        if reference:
            section = sections[reference]
            lines += ["", f"## {name}", "", _one_line(section.get("description", "")), ""]
            required = section.get("required", ())
            fields = section["properties"]
            inner = {key: found for key, one in fields.items() if (found := _ref(one))}
            own = {key: one for key, one in fields.items() if key not in inner}
            lines += _field_table(own, sections, required)
            lines += _after_section(name, sections)
            for key, found in inner.items():
                lines += [
                    "",
                    f"### {name}.{key}",
                    "",
                    _one_line(sections[found]["description"]),
                    "",
                ]
                lines += _field_table(sections[found]["properties"], sections, required=())
    return "\n".join([*lines, ""])


def _load_table(section: Mapping[str, Any], sections: Mapping[str, Any]) -> list[str]:
    return _field_table(section["properties"], sections, section["required"])


def _after_section(name: str, sections: Mapping[str, Any]) -> list[str]:
    if name == "prompt":
        example = sections["Example"]
        table = _field_table(example["properties"], sections, example["required"])
        return ["", "Each entry of `examples` has:", "", *table]
    if name == "kubernetes":
        return _nested_sections(sections, ("Group", "Volume", "Toleration", "Hami", "Dra"))
    if name == "sampling":
        rows = [
            f"| `{preset}` | {', '.join(f'`{key}: {value}`' for key, value in fields.items())} |"
            for preset, fields in PRESETS.items()
        ]
        return [
            "", f"`max_tokens` is {DEFAULT_MAX_TOKENS} unless it is given. The presets set:", "",
            "| preset | fields |", "|---|---|", *rows,
        ]  # fmt: skip
    if name == "engine":
        rows = [f"| `{key}` | {text} |" for key, text in _attributes(FakeOptions.__doc__ or "")]
        return [
            "", "How `auto` chooses stands in [embeddings](../how-to/embeddings.md#which-engine). "
            "With `kind: vllm`, `options` takes the fields of the installed vLLM's "
            "`EngineArgs`, and `omp_num_threads` for its CPU build. With `kind: fake`:", "",
            "| option | meaning |", "|---|---|", *rows,
        ]  # fmt: skip
    return []


def _nested_sections(sections: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for name in names:
        section = sections[name]
        lines += ["", f"### {name.lower()}", "", _one_line(section["description"]), ""]
        lines += _field_table(section["properties"], sections, section.get("required", ()))
    return lines


def _field_table(
    fields: Mapping[str, Any], sections: Mapping[str, Any], required: Iterable[str]
) -> list[str]:
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        default = "required" if name in required else f"`{_yaml(field.get('default'))}`"
        meaning = _one_line(field.get("description", ""))
        lines.append(f"| `{name}` | {_type(field, sections)} | {default} | {meaning} |")
    return lines


def _type(field: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    """A JSON Schema in a few words."""
    if "anyOf" in field:
        kinds = [_type(kind, sections) for kind in field["anyOf"] if kind.get("type") != "null"]
        return " or ".join(kinds)
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if reference := _ref(field):
        return reference.lower()
    kind = field.get("type", "anything")
    if kind == "array":
        return f"list of {_type(field.get('items', {}), sections)}"
    names = {"string": "text", "boolean": "true or false", "object": "mapping"}
    return names.get(kind, kind) + _bounds(field)


def _bounds(field: Mapping[str, Any]) -> str:
    words = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {_number(field[word])}" for word, sign in words.items() if word in field]
    if field.get("minLength"):
        bounds.append("not empty")
    return f", {', '.join(bounds)}" if bounds else ""


def _number(value: float) -> str:
    return (
        f"{value:g}"
        if abs(value) < 1e6
        else f"{value:,.0f}"
        if abs(value) < 1e15
        else ("-2^63" if value < 0 else "2^63")
    )


def _ref(field: Mapping[str, Any]) -> str:
    return str(field.get("$ref", "")).rpartition("/")[2]


def _yaml(value: Any) -> str:
    return "null" if value is None else orjson.dumps(value).decode().strip('"') or '""'


def _attributes(docstring: str) -> list[tuple[str, str]]:
    """`name: text` pairs of a Google docstring's Attributes section."""
    body = docstring.partition("Attributes:")[2]
    return [
        (name, _one_line(text))
        for name, text in re.findall(r"^ {8}(\w+): (.+(?:\n {12}.+)*)", body, re.MULTILINE)
    ]


# --- command line ------------------------------------------------------------------------------


def cli_page() -> str:
    """Every command, from the same declarations that `--help` shows."""
    group = typer.main.get_command(app)
    commands: dict[str, Any] = getattr(group, "commands")  # noqa: B009  (typer hides its type)
    lines = [
        NOTE, "", "# Commands", "", _one_line(group.help or ""), "",
        "`batchwright --version` prints the version; `batchwright COMMAND --help` (or `-h`) shows "
        "what stands here. With `--json` a command prints one JSON object on stdout; progress and "
        "messages go to stderr always. [Exit codes](errors.md#exit-codes) are the same for all "
        "commands.", "", "| command | what it does |", "|---|---|",
    ]  # fmt: skip
    lines += [
        f"| [`{name}`](#batchwright-{name}) | {_one_line(command.help or '')} |"
        for name, command in commands.items()
    ]
    for name, command in commands.items():
        lines += ["", *_command(name, command)]
    return "\n".join([*lines, ""])


def _command(name: str, command: Any) -> list[str]:
    if inner := getattr(command, "commands", None):
        return _group(name, command, inner)
    arguments = [param for param in command.params if not param.opts[0].startswith("-")]
    options = [param for param in command.params if param.opts[0].startswith("-")]
    usage = " ".join(["batchwright", name, "[OPTIONS]", *(one.metavar for one in arguments)])
    rows = [f"| `{one.metavar}` | | {_one_line(one.help or '')} |" for one in arguments]
    for option in options:
        spelled = ", ".join(f"`{text}`" for text in option.opts)
        value = "" if option.is_flag else "VALUE, repeatable" if option.multiple else "VALUE"
        default = "" if option.default in (None, False) else f" Default: `{option.default}`."
        rows.append(f"| {spelled} | {value} | {_one_line(option.help or '')}{default} |")
    head = ["| argument or option | value | meaning |", "|---|---|---|"]
    return [
        f"## batchwright {name}", "", _one_line(command.help or ""), "",
        "```text", usage, "```", "", *head, *rows,
    ]  # fmt: skip


def _group(name: str, group: Any, commands: Mapping[str, Any]) -> list[str]:
    """A command of commands: its own section, and a smaller one for each."""
    lines = [f"## batchwright {name}", "", _one_line(group.help or "")]
    for inner, command in commands.items():
        head, *rest = _command(f"{name} {inner}", command)
        lines += ["", f"#{head}", *rest]
    return lines


# --- errors ------------------------------------------------------------------------------------


def errors_page() -> str:
    """Exit codes, the tree of exceptions and the codes of rows."""
    lines = [NOTE, "", "# Errors", "", "## Exit codes", "", "| code | meaning |", "|--:|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in _exit_codes()]
    lines += [
        "", "After 75 and 130 the same command goes on where it stopped. If the disk or the engine "
        "was the cause, mend that first: the message names it.",
        "", "## Exceptions", "", "```text", _tree_of_exceptions(), "```",
        "", "With `--json` the object on stdout is "
        '`{"error": {"kind": …, "message": …, "hint": …}, "exit_code": …}`, where `kind` is the '
        "name of the class.",
    ]  # fmt: skip
    for title, intro, codes in (
        ("Rejected rows", "Found before the engine; `status` is `rejected`.",
         errors.REJECTION_CODES),
        ("Failed rows", "Refused or lost by the engine; `status` is `failed`. `retry` runs them "
         "again.", errors.FAILURE_CODES),
        ("Warnings", "The row runs all the same; the codes stand in its `warnings`.",
         errors.WARNING_CODES),
        ("Rows that are not in a vector database", "Of a load; the run's own rows and results stay "
         "as they are. They stand in `load/TARGET/errors.jsonl` of the run directory.",
         errors.LOAD_CODES),
        ("Rows that a load changes", "They are in the database; the codes are counted in its summary.",
         errors.LOAD_WARNING_CODES),
    ):  # fmt: skip
        lines += ["", f"## {title}", "", intro, "", *_codes(codes)]
    return "\n".join([*lines, ""])


def _codes(codes: Mapping[str, str]) -> list[str]:
    """A table of codes; those of rows without an answer have something to do about them."""
    if codes not in (errors.REJECTION_CODES, errors.FAILURE_CODES):
        rows = [f"| `{code}` | {meaning} |" for code, meaning in codes.items()]
        return ["| code | meaning |", "|---|---|", *rows]
    rows = [f"| `{code}` | {meaning} | {_one_line(REMEDIES[code])} |"
            for code, meaning in codes.items()]  # fmt: skip
    return ["| code | meaning | what to do |", "|---|---|---|", *rows]


def _tree_of_exceptions() -> str:
    return (errors.__doc__ or "").partition("\n\n")[2].strip()


def _exit_codes() -> list[tuple[int, str]]:
    """Each exit code with what the errors that carry it say of themselves."""
    meanings: dict[int, list[str]] = {}
    for kind in _subclasses(errors.BatchwrightError):
        own = kind.__mro__[1]
        if own is not errors.BatchwrightError and own.exit_code == kind.exit_code:
            continue  # its base says it
        text = _one_line(kind.__doc__ or "").partition("Args:")[0].removesuffix(".")
        meanings.setdefault(kind.exit_code, []).append(text)
    meanings.setdefault(1, []).append(
        "`verify` found that the run does not add up; or an internal error"
    )
    found = [EXIT_OK, (errors.EXIT_MANY_FAILED, _many_failed())]
    found += [(code, ". Or: ".join(dict.fromkeys(texts)) + ".") for code, texts in meanings.items()]
    return sorted(found)


def _many_failed() -> str:
    return (
        "Finished and complete, but a larger share of rows than `run.max_failed` has no answer. "
        "The results are there."
    )


def _subclasses(kind: type[errors.BatchwrightError]) -> list[type[errors.BatchwrightError]]:
    found = []
    for child in kind.__subclasses__():
        found += [child, *_subclasses(child)]
    return found


# --- all ---------------------------------------------------------------------------------------


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def out_of_date() -> list[Path]:
    """The generated files that are not what the source says."""
    return [
        path
        for path, text in make_all().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


def main() -> None:
    """Write, or check with `--check`."""
    if sys.argv[1:] == ["--check"]:
        stale = out_of_date()
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run python scripts/make_reference.py")
        sys.exit(1 if stale else 0)
    if sys.argv[1:]:
        sys.exit(__doc__)
    for path in out_of_date():
        path.write_text(make_all()[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
