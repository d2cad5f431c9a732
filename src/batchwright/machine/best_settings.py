"""What earlier sweeps found, kept in the user's cache folder for later plans."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from batchwright.config.job import Job
from batchwright.core.errors import StorageError
from batchwright.core.ids import digest
from batchwright.core.sweep import SWEPT, RememberedSweep, Shape, SweepKey, bucket
from batchwright.core.workload import LengthHistogram
from batchwright.rundir import artifacts
from batchwright.rundir.storage import Storage

FOLDER = "sweeps"


class Found(NamedTuple):
    """A sweep of the same model, card and shape of work, and what was wrong with others."""

    sweep: RememberedSweep | None
    problems: tuple[str, ...] = ()


def cache_root() -> Path:
    """Folder for what batchwright keeps between runs.

    `BATCHWRIGHT_CACHE`, else `batchwright` in `XDG_CACHE_HOME` or `~/.cache`.
    """
    if own := os.environ.get("BATCHWRIGHT_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "batchwright"


def sweep_key(
    job: Job, config: Mapping[str, Any], device: str, prompts: LengthHistogram, max_tokens: int
) -> SweepKey:
    """What a sweep of this job holds for.

    Args:
        job: its engine options are the user's own, not the plan's.
        config: the model's `config.json`; empty if there is none.
        device: name of the card, as the table of GPUs has it; `cpu` without one.
        prompts: prompt tokens of the rows that will run.
        max_tokens: the largest output cap of any row.
    """
    own = {name: value for name, value in job.engine.options.items() if name not in SWEPT}
    model = digest(dict(config)) if config else f"{job.model.name}@{job.model.revision or ''}"
    return SweepKey(
        engine=job.engine.kind,
        model=model,
        device=device,
        dtype=str(job.model.dtype or "auto"),
        options=digest(own),
        shape=Shape.of(prompts, max_tokens),
    )


def keep_sweep(sweep: RememberedSweep, root: Path | None = None) -> Path:
    """Write it, in place of an older one for the same work.

    Args:
        sweep: what to keep.
        root: of the cache; `cache_root()` unless given.

    Returns:
        The file.

    Raises:
        StorageError: the cache cannot be written.
    """
    folder = _folder(root)
    name = f"{_stem(sweep.key)}-{sweep.output_mean}.json"
    Storage(folder).put(name, artifacts.dump(sweep))
    return folder / name


def find_sweep(key: SweepKey, output_mean: float | None = None, root: Path | None = None) -> Found:
    """The newest sweep that holds for this work. Damaged files are removed and named.

    Args:
        key: of the job.
        output_mean: mean output tokens of a row; None while nobody knows, which fits all.
        root: of the cache; `cache_root()` unless given.
    """
    folder = _folder(root)
    if not folder.is_dir():
        return Found(None)
    ending = "*" if output_mean is None else str(bucket(output_mean))
    found: list[RememberedSweep] = []
    problems: list[str] = []
    for path in sorted(folder.glob(f"{_stem(key)}-{ending}.json")):
        try:
            found.append(artifacts.load(RememberedSweep, path.read_bytes(), str(path)))
        except (StorageError, OSError) as error:
            path.unlink(missing_ok=True)
            problems.append(f"{path} was damaged and is removed: {error}")
    newest = max(found, key=lambda sweep: sweep.measured_on, default=None)
    return Found(newest, tuple(problems))


def _folder(root: Path | None) -> Path:
    return (cache_root() if root is None else root) / FOLDER


def _stem(key: SweepKey) -> str:
    """A name that says what it is, and a digest of all that counts."""
    device = "".join(letter if letter.isalnum() else "-" for letter in key.device)
    return f"{key.engine}-{device}-{digest(artifacts.dump(key).decode())}"
