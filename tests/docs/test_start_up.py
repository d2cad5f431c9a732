"""Importing batchwright and asking for help load nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from batchwright.cli.app import app

# pyarrow and numpy too: --help has no use for them, and they take a quarter of a second.
HEAVY = (
    "vllm", "torch", "transformers", "tokenizers", "ray", "kubernetes", "duckdb", "obstore",
    "pyarrow", "numpy",
)  # fmt: skip

COMMANDS = sorted(getattr(typer.main.get_command(app), "commands"))  # noqa: B009


def _loaded(code: str) -> list[str]:
    """Heavy modules that a fresh interpreter has loaded after running `code`."""
    # A module that is None in sys.modules is kept out, not loaded.
    report = f"\nimport sys\nprint('LOADED', *[n for n in {HEAVY!r} if sys.modules.get(n)])"
    done = subprocess.run(
        [sys.executable, "-c", code + report], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1].split()[1:]


def test_import_loads_nothing_heavy() -> None:
    assert _loaded("import batchwright") == []


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([c, "-h"] for c in COMMANDS)])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        f"import sys\nsys.argv = ['batchwright', *{arguments!r}]\n"
        "from batchwright.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
    )
    assert _loaded(code) == []
