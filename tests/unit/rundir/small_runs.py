"""Makes small runs in process: surveyed, prepared and ordered, with no engine and no model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from batchwright.config.job import Job
from batchwright.config.load import make_job
from batchwright.core.ports import Tokenizer
from batchwright.core.records import Chunk, OrderBatch, PreparedReceipt
from batchwright.foresight.survey import survey
from batchwright.order import Sequencer
from batchwright.prepare import Preparer
from batchwright.read.files import list_files
from batchwright.read.splits import cut_splits
from batchwright.rundir import layout
from batchwright.rundir.manifest import Manifest, open_manifest
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage
from batchwright.tokens.byte_level import ByteTokenizer

Row = dict[str, Any] | str | bytes


class ManualClock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass
class SmallRun:
    storage: Storage
    manifest: Manifest
    job: Job
    tokenizer: Tokenizer

    def prepare(self, splits: Iterable[int] | None = None) -> list[PreparedReceipt]:
        preparer = Preparer(self.storage, self.manifest, self.job, self.tokenizer)
        wanted = range(len(self.manifest.splits)) if splits is None else splits
        return [one for split in wanted for one in preparer.prepare(self.manifest.splits[split])]

    def order(self) -> Sequencer:
        sequencer = Sequencer(self.storage, self.manifest)
        while not sequencer.finished and sequencer.advance():
            pass
        return sequencer

    def state(self) -> RunState:
        state = RunState(self.storage)
        state.refresh_order()
        state.refresh_receipts()
        return state

    def batches(self) -> list[OrderBatch]:
        return self.state().batches

    def chunk_rows(self) -> list[list[int]]:
        """The row numbers of each chunk, in the order's order."""
        return [rows_of(chunk) for chunk in self.state().chunks]

    def rejected(self) -> list[dict[str, Any]]:
        """The lines of rejected/*.jsonl."""
        return [
            json.loads(line)
            for name in self.storage.names(layout.REJECTED)
            for line in self.storage.read(f"{layout.REJECTED}/{name}").splitlines()
        ]


def rows_of(chunk: Chunk) -> list[int]:
    return [
        piece.first_row + index
        for piece in chunk.slices
        for index in range(piece.start, piece.stop)
    ]


def write_rows(path: Path, rows: Sequence[Row]) -> Path:
    """JSON lines; texts and bytes go in as they are."""
    lines = [
        row if isinstance(row, bytes) else row.encode() if isinstance(row, str)
        else json.dumps(row, ensure_ascii=False).encode()
        for row in rows
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def prompts(count: int, start: int = 0) -> list[Row]:
    return [{"id": f"r{i}", "prompt": f"prompt {i}"} for i in range(start, start + count)]


def small_job(path: Path | str | list[str], **settings: Any) -> Job:
    """A job on the fake engine; `settings` are dotted keys with `__` for the dot."""
    overrides = {key.replace("__", "."): value for key, value in settings.items()}
    source = path if isinstance(path, list) else str(path)
    return make_job({"input": {"path": source}, "engine": {"kind": "fake"}}, overrides)


def small_run(
    tmp_path: Path,
    files: dict[str, Sequence[Row]] | Sequence[Row] | Path,
    *,
    split_bytes: int = 16 << 20,
    shared_bytes: int = 0,
    run_dir: str = "run",
    tokenizer: Tokenizer | None = None,
    **settings: Any,
) -> SmallRun:
    """A surveyed run over rows (one file), several files, or a path that is there already.

    Each file is a split of its own, unless `shared_bytes` says otherwise.
    """
    if isinstance(files, Path):
        path = files
    else:
        path = tmp_path / "data"
        named = files if isinstance(files, dict) else {"rows.jsonl": files}
        for name, rows in named.items():
            write_rows(path / name, rows)
    job = small_job(path, **settings)
    manifest = survey(job)
    cut = cut_splits(
        list_files(job.input.path), manifest.format, split_bytes=split_bytes,
        shared_bytes=shared_bytes,
    )  # fmt: skip
    manifest = replace(manifest, splits=tuple(cut))
    storage = Storage(tmp_path / run_dir)
    open_manifest(storage, manifest)
    return SmallRun(storage, manifest, job, tokenizer or ByteTokenizer())


def order_files(run: SmallRun) -> dict[str, bytes]:
    """Everything that ordering writes."""
    return {
        f"{folder}/{name}": run.storage.read(f"{folder}/{name}")
        for folder in (layout.ORDER, layout.REJECTED)
        for name in run.storage.names(folder)
    }


class CountingStorage(Storage):
    """Notes what is asked of a run directory.

    Attributes:
        listed: folder of each listing.
        awaited: paths that were asked for by name, each time.
        created: paths that were to be created, with success or without.
    """

    def __init__(self, location: Path | str) -> None:
        super().__init__(location)
        self.listed: list[str] = []
        self.awaited: list[str] = []
        self.created: list[str] = []

    def names(self, folder: str, after: str = "", before: str = "") -> list[str]:
        self.listed.append(folder)
        return super().names(folder, after, before)

    def read_awaited(self, paths: Sequence[str]) -> list[bytes | None]:
        self.awaited += paths
        return super().read_awaited(paths)

    def create(self, path: str, data: bytes) -> bool:
        self.created.append(path)
        return super().create(path, data)
