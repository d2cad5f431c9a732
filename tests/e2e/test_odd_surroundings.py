"""What schedulers, daemons and other people's habits leave a command to run in."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.command import COMMAND, call
from tests.unit.rundir.small_runs import prompts, write_rows


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_whose_standard_streams_are_closed_does_its_work(
    closed: str, tmp_path: Path
) -> None:
    """The files that it opens must not get their numbers: what an engine prints would go into them."""
    rows = write_rows(tmp_path / "rows.jsonl", prompts(20))
    command = [*COMMAND, "run", str(rows), "--engine", "fake", "--dir", str(tmp_path / "run")]
    shell = ["bash", "-c", f'"$@" {closed}', "bash", *command]
    ended = subprocess.run(shell, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, ended
    assert call("verify", tmp_path / "run")["passed"]


def test_those_who_may_read_the_folder_may_read_the_run(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", prompts(20))
    call("run", rows, "--engine", "fake", "--dir", tmp_path / "run")
    mask = os.umask(0)
    os.umask(mask)
    unlike = [
        str(path.relative_to(tmp_path))
        for path in (tmp_path / "run").rglob("*")
        if path.is_file() and (path.stat().st_mode & 0o666) != 0o666 & ~mask
    ]
    assert unlike == []
