"""The rules of the tree: sizes, docstrings, names, and which way the arrows point."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "batchwright"
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_MODULE_LINES = 350
MAX_FUNCTION_LINES = 50
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
HEAVY = {"vllm", "torch", "transformers", "tokenizers", "duckdb", "pyarrow", "obstore", "numpy"}


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_the_package_is_found() -> None:
    assert len(MODULES) > 50


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_opens_with_a_sentence_on_what_it_is(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring
    assert docstring.split("\n\n")[0].endswith((".", "?"))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_MODULE_LINES


def test_functions_are_short() -> None:
    long = [
        f"{name_of(path)}:{node.lineno} {node.name}: {length} lines"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert not long


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert not [name_of(path) for path in PACKAGE.rglob("*") if path.stem in VAGUE_NAMES]


def test_no_error_is_caught_in_the_dark() -> None:
    """A bare `except:`, or one that swallows all there is, hides faults of our own."""
    dark = [
        f"{name_of(path)}:{node.lineno}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in
                                   ("Exception", "BaseException")))
        and not any(isinstance(inner, ast.Raise | ast.Return | ast.Call) for inner in ast.walk(node))
    ]  # fmt: skip
    assert not dark


def test_nothing_is_pickled() -> None:
    assert not [
        name_of(path)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import) and any(one.name == "pickle" for one in node.names)
    ]


def _lint_imports() -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_arrows_point_down() -> None:
    result = _lint_imports()
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


@pytest.mark.parametrize("start", ["import batchwright", "import batchwright.cli.app"])
def test_a_start_loads_nothing_heavy(start: str) -> None:
    code = f"{start}, sys; print(*sorted({HEAVY!r} & sys.modules.keys()))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []
