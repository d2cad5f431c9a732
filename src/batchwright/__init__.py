"""Offline batch inference for language models: a dataset in, every row's answer out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from batchwright.opened import OpenedRun

__version__ = "0.1.0"
__all__ = ["__version__", "open"]


def open(run: str | Path) -> OpenedRun:
    """Open a run directory to read its results, while it runs or after.

    Args:
        run: the run directory.

    Raises:
        batchwright.core.errors.JobError: it holds no run.
    """
    from batchwright.opened import OpenedRun

    return OpenedRun(run)
