"""Every marked shell block of the docs runs, page by page, in order, in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, pages

WITH_BLOCKS = [page for page in pages() if blocks(page)]


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run(page: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
    }
    for block in blocks(page):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.code],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        where = f"{page.relative_to(ROOT)}:{block.line}"
        said = f"{where} ended with {done.returncode}\n{block.code}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == block.exit_code, said


def test_tutorial_and_readme_have_blocks() -> None:
    names = {page.name for page in WITH_BLOCKS}
    assert {"README.md", "tutorial.md"} <= names


def test_every_bash_block_is_run() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        assert text.count("```bash\n") == len(blocks(page)), (
            f"{page.relative_to(ROOT)}: mark bash blocks with <!-- run -->, or call them text"
        )
