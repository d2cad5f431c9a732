"""The reference pages say what the source says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

from batchwright.cli.app import app
from batchwright.core import errors
from batchwright.core.schemas import CONTRACT
from batchwright.rundir import layout
from tests.docs.pages import ROOT

REFERENCE = ROOT / "docs" / "reference"
COMMANDS = sorted(getattr(typer.main.get_command(app), "commands"))  # noqa: B009


def _script() -> ModuleType:
    path = ROOT / "scripts" / "make_reference.py"
    spec = importlib.util.spec_from_file_location("make_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _read(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def test_generated_files_are_up_to_date() -> None:
    stale = [str(path.relative_to(ROOT)) for path in _script().out_of_date()]
    assert not stale, f"run python scripts/make_reference.py: {stale}"


def test_every_module_has_a_phrase() -> None:
    phrase = _script().phrase
    bare = [path for path in (ROOT / "src").rglob("*.py") if not phrase(path)]
    assert not bare


@pytest.mark.parametrize("command", COMMANDS)
def test_help_works_and_all_it_names_is_documented(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert shown.exit_code == 0
    section = _read("cli.md").split(f"\n## batchwright {command}\n")
    assert len(section) == 2, f"cli.md lacks a section for {command}"
    documented = section[1].partition("\n## ")[0]
    for option in set(re.findall(r"--[a-z][a-z-]*", shown.output)) - {"--help"}:
        assert f"`{option}`" in documented


def test_every_code_is_documented() -> None:
    page = _read("errors.md")
    tables = (
        errors.REJECTION_CODES, errors.FAILURE_CODES, errors.WARNING_CODES, errors.LOAD_CODES,
        errors.LOAD_WARNING_CODES,
    )  # fmt: skip
    for code in {code for table in tables for code in table}:
        assert page.count(f"| `{code}` |") == sum(code in table for table in tables)


def test_every_error_class_is_in_the_tree_with_its_exit_code() -> None:
    page = _read("errors.md")
    kinds = [errors.BatchwrightError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    for kind in kinds[1:]:
        if kind is errors.EngineDied:  # never ends a command: the supervisor handles it
            continue
        line = re.search(rf"{kind.__name__} +(\d+)", page)
        assert line is not None, kind
        assert int(line[1]) == kind.exit_code
        assert f"\n| {kind.exit_code} |" in page


def _spelled(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {'struct' if pa.types.is_struct(kind.value_type) else kind.value_type}"
    return str(kind)


def test_output_page_has_the_contract_in_order() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", _read("output.md"), re.MULTILINE)
    types = [_spelled(field.type) for field in CONTRACT]
    names = [field.name for field in CONTRACT]
    assert rows[: len(CONTRACT)] == list(zip(names, types, strict=True))


def test_run_directory_page_names_every_file() -> None:
    page = _read("run-directory.md")
    names = [value for name, value in vars(layout).items() if name.isupper()]
    for name in names:
        assert f"`{name}`" in page or f"`{name}/" in page, name


def test_exit_codes_in_the_tree_of_the_docstring_hold() -> None:
    for name, code in re.findall(r"(\w+) +(\d+)  ", errors.__doc__ or ""):
        assert getattr(errors, name).exit_code == int(code)


def test_script_refuses_unknown_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["make_reference.py", "--chek"])
    with pytest.raises(SystemExit):
        _script().main()


def test_changelog_has_the_current_version() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.+)"$', project, re.MULTILINE)
    assert version is not None
    assert f"## [{version[1]}]" in Path(ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
