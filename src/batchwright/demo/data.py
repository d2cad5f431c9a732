"""The demo's rows and job file, from the installed package or from a checkout's `examples/`."""

from __future__ import annotations

import shutil
from pathlib import Path

from batchwright.core.errors import JobError

ROWS = "reviews.jsonl"
JOB = "reviews.yaml"


def write_example(folder: Path) -> Path:
    """Copy the rows and the job file into a folder; files of the same names are replaced.

    Returns:
        The path of the job file.
    """
    source = _source()
    folder.mkdir(parents=True, exist_ok=True)
    for name in (ROWS, JOB):
        shutil.copyfile(source / name, folder / name)
    return folder / JOB


def _source() -> Path:
    here = Path(__file__).resolve().parent
    # An editable install leaves the files where they are written: examples/ of the checkout.
    for folder in (here, here.parents[2] / "examples"):
        if (folder / ROWS).is_file() and (folder / JOB).is_file():
            return folder
    raise JobError(
        f"The demo's files {ROWS} and {JOB} are not in this installation.",
        "Install batchwright again: pip install --force-reinstall --no-deps batchwright",
    )
