"""Runs the command line as a person would, and kills it as a cluster would."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

COMMAND = [sys.executable, "-m", "batchwright"]


def call(*arguments: object, exit_code: int = 0, cwd: Path | None = None) -> dict[str, Any]:
    """Run a command with --json; its exit code must be as expected. Returns the object."""
    command = [*COMMAND, *map(str, arguments), "--json"]
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, stdin=subprocess.DEVNULL, check=False
    )
    assert ended.returncode == exit_code, f"exit {ended.returncode}: {ended.stdout}{ended.stderr}"
    return dict(json.loads(ended.stdout))


def start(*arguments: object, cwd: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a command in the background."""
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=cwd,
        start_new_session=True,
    )


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a command and every process below it, as when a machine goes down."""
    family = [psutil.Process(process.pid)]
    with contextlib.suppress(psutil.NoSuchProcess):
        family += family[0].children(recursive=True)
    for member in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGKILL)
    process.wait()


def result_bytes(run_dir: Path) -> dict[str, bytes]:
    """The exported files by name."""
    return {path.name: path.read_bytes() for path in (run_dir / "results").glob("results-*")}
