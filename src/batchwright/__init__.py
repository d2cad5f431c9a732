"""Offline batch inference for language models: a dataset in, every row's answer out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from batchwright.handle import JobHandle
    from batchwright.results.from_python import OpenedRun

__version__ = "0.1.0"
__all__ = ["__version__", "job", "open"]


def job(
    source: str | Path | Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    *,
    run_dir: str | Path | None = None,
) -> JobHandle:
    """A job, to validate, plan, run and look at.

    Args:
        source: a job file, data, the folder of an earlier run, or what a job file would hold.
        settings: dotted key of the job file to value, applied on top (`{"run.replicas": 2}`).
        run_dir: where the run lives; by the job file's `run.dir` unless given.

    Raises:
        batchwright.core.errors.JobError: with the key that is wrong, and the nearest known name.
    """
    from batchwright.handle import find_job

    return find_job(source, settings, run_dir=run_dir)


def open(run: str | Path) -> OpenedRun:
    """Open a run directory to read its results, while it runs or after.

    Args:
        run: the run directory.

    Raises:
        batchwright.core.errors.JobError: it holds no run.
    """
    from batchwright.results.from_python import OpenedRun

    return OpenedRun(run)
