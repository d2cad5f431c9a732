"""The manifest: what the run is, fixed when it begins, and why a resume may be refused."""

from __future__ import annotations

import base64
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from batchwright.core.errors import JobError, ResumeRefused
from batchwright.core.records import SourceFile, Split
from batchwright.core.schemas import OLDEST_GONE_ON_WITH
from batchwright.rundir import artifacts, layout
from batchwright.rundir.locations import Location
from batchwright.rundir.storage import Storage


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything a worker needs to know, so that it reads nothing but the run directory.

    Attributes:
        job: the resolved job file as plain data.
        tools: versions of what made the run.
        format: input format after detection.
        input_type: base64 of the Arrow IPC schema whose only field is the `input` column.
        id_column: column of the id; empty when rows are known by their number.
        chat: whether column and template prompts are sent as chat messages.
        max_model_len: prompt and output tokens of one row at most.
        pilot_rows: rows that the order begins with, chosen by prompt length; 0 for none.
        pilot_pool: they are chosen from the first so many rows at most; 0 for all of them.
        planned: engine options, by the engine's own names, and `replicas` that the plan chose for
            the machine of this start; the job's own options beat them.
        kv_tokens: that the KV cache of each engine of this start should hold; 0 if not known.
        block_size: tokens of one of its blocks.
        fingerprint: section to key to value; a resume must find the same.
    """

    job: dict[str, Any]
    tools: dict[str, str]
    files: tuple[SourceFile, ...]
    splits: tuple[Split, ...]
    format: str
    input_type: str
    id_column: str
    chat: bool
    max_model_len: int
    fingerprint: dict[str, Any]
    pilot_rows: int = 0
    pilot_pool: int = 0
    planned: dict[str, Any] = field(default_factory=dict)
    kv_tokens: int = 0
    block_size: int = 16

    @property
    def most_engines(self) -> int:
        """Engines that may share the work: replicas, times those that may share a card."""
        run, planned = self.job["run"], self.planned
        replicas = int(run["replicas"] or planned.get("replicas", 1))
        return replicas * int(run["engines_per_gpu"] or planned.get("engines_per_gpu", 1))

    def arrow_input_type(self) -> pa.DataType:
        """Type of the `input` column."""
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.input_type)))
        return schema.field(0).type


def block_size(manifest: Manifest) -> int:
    """Tokens of a block of the cache of the job's engine."""
    asked = manifest.job["engine"]["options"].get("block_size")
    return asked if isinstance(asked, int) and asked > 0 else manifest.block_size


# What prepared parts were made by: another version might cut or read the same input otherwise.
_FIRST_MADE = (
    "files", "splits", "format", "input_type", "id_column", "chat", "max_model_len",
    "pilot_rows", "pilot_pool",
)  # fmt: skip


def encode_input_type(data_type: pa.DataType) -> str:
    """An Arrow type as text for the manifest."""
    return base64.b64encode(pa.schema([pa.field("input", data_type)]).serialize()).decode()


def run_if_there(run_dir: Location) -> tuple[Storage, Manifest] | None:
    """A run that is there already, or None; nothing is made."""
    # A folder would be made by looking into it.
    if isinstance(run_dir, Path) and not (run_dir / layout.MANIFEST).is_file():
        return None
    storage = Storage(run_dir)
    raw = storage.read_if_there(layout.MANIFEST)
    return None if raw is None else (storage, _loaded(storage, raw))


def existing_run(run_dir: Location) -> tuple[Storage, Manifest]:
    """A run that is there already. Raises JobError if the folder holds none."""
    found = run_if_there(run_dir)
    if found is None:
        raise JobError(
            f"{run_dir} is not a run directory: there is no {layout.MANIFEST}",
            "Give the folder that `batchwright run` named in its first line.",
        )
    return found


def read_manifest(storage: Storage) -> Manifest:
    """The run's manifest. Raises StorageError when it is damaged or not there."""
    return _loaded(storage, storage.read(layout.MANIFEST))


def _loaded(storage: Storage, raw: bytes) -> Manifest:
    return artifacts.load(Manifest, raw, f"{storage.location}/{layout.MANIFEST}")


def refuse_older(storage: Storage) -> None:
    """Nothing is added to a run of a much older format: its parts would not be of one kind.

    Raises:
        ResumeRefused: it can be exported, verified and looked at, but not gone on with.
    """
    format_version = artifacts.version_of(storage.read(layout.MANIFEST))
    if format_version < OLDEST_GONE_ON_WITH:
        raise ResumeRefused(
            f"{storage.location} was begun by an older batchwright (format {format_version})",
            "Finish it with that version, or start afresh in another run directory (--dir).",
        )


def open_manifest(storage: Storage, wanted: Manifest) -> tuple[Manifest, bool]:
    """Create the manifest, or check that the one that is there is of the same job.

    What may change freely between starts (workers, engine options, output format) is taken from
    `wanted`; the cut of the input stays as it was first made.

    Returns:
        The manifest in force, and whether the run is being resumed.
    """
    if storage.read_if_there(layout.MANIFEST) is None:
        _refuse_headless(storage)
        if storage.commit(layout.MANIFEST, artifacts.dump(wanted)):
            return wanted, False
    there = read_manifest(storage)
    refuse_older(storage)
    changes = differences(there.fingerprint, wanted.fingerprint)
    if changes:
        raise ResumeRefused(
            f"{storage.location} holds another job:\n    " + "\n    ".join(changes),
            "Change it back to go on, or start afresh in another run directory (--dir).",
        )
    kept = {name: getattr(there, name) for name in _FIRST_MADE}
    wanted = dataclasses.replace(wanted, **kept)
    if there != wanted:
        storage.publish(layout.MANIFEST, artifacts.dump(wanted))
    return wanted, True


def _refuse_headless(storage: Storage) -> None:
    """Answers without a manifest could be of any job: a new one would take them for its own.

    Raises:
        ResumeRefused: there are some, or prepared rows.
    """
    left = next(
        (one for one in (layout.RECEIPTS, layout.ORDER, layout.PREPARED) if storage.names(one)),
        None,
    )
    # It is written before them. Asked last: another process may have begun the run meanwhile.
    if left is not None and storage.read_if_there(layout.MANIFEST) is None:
        raise ResumeRefused(
            f"{storage.location} has files of a run in {left}/, but its {layout.MANIFEST} is gone",
            "Put it back from a copy, or start afresh in another run directory (--dir).",
        )


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """`model.name: tiny-a -> tiny-b` for every leaf that differs."""
    changes = []
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = old.get(key), new.get(key)
        name = f"{prefix}{key}"
        if isinstance(before, dict) and isinstance(after, dict):
            changes += differences(before, after, f"{name}.")
        elif before != after:
            changes.append(f"{name}: {' -> '.join(_short_pair(before, after))}")
    return changes


def _short_pair(before: Any, after: Any, limit: int = 60) -> tuple[str, str]:
    """Both values, long ones cut to where they differ."""
    first, second = ("nothing" if value is None else str(value) for value in (before, after))
    if max(len(first), len(second)) <= limit:
        return first, second
    same = next(
        (at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]),
        min(len(first), len(second)),
    )
    start = max(0, same - limit // 3)
    return _window(first, start, limit), _window(second, start, limit)


def _window(text: str, start: int, limit: int) -> str:
    shown = text[start : start + limit - 3]
    left = "..." if start else ""
    return left + (shown + "..." if len(text) > start + limit else text[start:])
