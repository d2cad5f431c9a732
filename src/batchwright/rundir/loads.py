"""What a run directory says of its loads: what goes where, which parts are there, which rows are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson

from batchwright.core.errors import JobError
from batchwright.core.records import Receipt
from batchwright.core.stores import LoadCounts, LoadReceipt, RowFault, StoreRecord, StoreTarget
from batchwright.rundir import artifacts, layout
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage

RowsOf = Callable[[str], Iterable[int]]


class LoadState:
    """The load of a run into one table, as it is on the disk.

    Args:
        storage: of the run.
        name: of the target.
        url: of the target, for people.
    """

    def __init__(self, storage: Storage, name: str, url: str) -> None:
        self._storage = storage
        self.name = name
        self.url = url
        self.receipts: dict[str, LoadReceipt] = {}

    def refresh(self) -> None:
        """Read the receipts that have come since the last look."""
        folder = layout.load_parts(self.name)
        for name in self._storage.names(folder):
            if name not in self.receipts:
                path = f"{folder}/{name}"
                raw = self._storage.read(path)
                if raw.strip(b"\0"):  # else a power cut tore it: its rows are simply sent again
                    self.receipts[name] = artifacts.load(LoadReceipt, raw, path)

    def pending(self, state: RunState) -> list[Receipt]:
        """The run's parts that are not in the table, older outcomes first."""
        return [one for one in ordered_parts(state) if not self._has(one)]

    def loaded(self, state: RunState) -> list[LoadReceipt]:
        """Receipts of the parts that count for the run, older outcomes first."""
        return [
            self.receipts[_receipt_name(one.file)] for one in ordered_parts(state) if self._has(one)
        ]

    def _has(self, part: Receipt) -> bool:
        """Whether this very file was loaded: a chunk that was run again has another."""
        found = self.receipts.get(_receipt_name(part.file))
        return found is not None and found.sha256 == part.sha256

    def add(self, receipt: LoadReceipt) -> None:
        """Note that a part is in the table."""
        name = _receipt_name(receipt.file)
        self._storage.put(f"{layout.load_parts(self.name)}/{name}", artifacts.dump(receipt))
        self.receipts[name] = receipt

    def forget(self) -> None:
        """As if nothing had been loaded: all parts will be loaded again."""
        self._storage.delete(layout.load_summary(self.name))
        for name in self._storage.names(layout.load_parts(self.name)):
            self._storage.delete(f"{layout.load_parts(self.name)}/{name}")
        self._storage.delete(layout.load_record(self.name))
        self.receipts.clear()

    def refuse_changes(self, settings: dict[str, Any]) -> None:
        """Rows that were stored otherwise would stay as they are.

        Raises:
            JobError: naming each difference to what was loaded before.
        """
        path = layout.load_record(self.name)
        raw = self._storage.read_if_there(path)
        before = settings if raw is None else artifacts.load(StoreRecord, raw, path).settings
        changed = [
            f"{key}: {before.get(key)} -> {value}"
            for key, value in settings.items()
            if before.get(key) != value
        ]
        if changed:
            raise JobError(
                f"the run was loaded into {self.url} otherwise: {'; '.join(changed)}",
                "Change it back, or load all rows again: batchwright load RUN --again.",
            )

    def begin(self, settings: dict[str, Any]) -> None:
        """Note what is loaded, and how."""
        record = artifacts.dump(StoreRecord(self.url, settings))
        self._storage.publish(layout.load_record(self.name), record)

    def counts(self, state: RunState) -> LoadCounts:
        """How far the load is."""
        faults: Counter[str] = Counter()
        warnings: Counter[str] = Counter()
        loaded = self.loaded(state)
        for receipt in loaded:
            warnings.update(receipt.warnings)
            faults.update(fault.code for fault in receipt.faults)
        # A row without a vector that was run again counts by its newest outcome.
        again = sum(
            one.rows for one in state.receipts.values() if one.generation and self._has(one)
        )
        faults.subtract({"no_vector": min(again, faults["no_vector"])})
        return LoadCounts(
            url=self.url,
            parts=len(ordered_parts(state)),
            parts_loaded=len(loaded),
            loaded=sum(receipt.loaded for receipt in loaded),
            faults=dict(sorted((+faults).items())),
            warnings=dict(warnings),
            finished=self._finished(state, len(loaded)),
        )

    def _finished(self, state: RunState, loaded: int) -> bool:
        raw = self._storage.read_if_there(layout.load_summary(self.name))
        noted = orjson.loads(raw)["parts_loaded"] if raw else -1
        return bool(state.counts().complete) and noted == loaded == len(ordered_parts(state))

    def list_faults(self, state: RunState, rows_of: RowsOf) -> None:
        """Write errors.jsonl: each row that is not in the table, by its newest outcome.

        Args:
            state: of the run.
            rows_of: the rows of a part, for those that were run again.
        """
        faults: dict[int, RowFault] = {}
        receipts = {one.file: one for one in self.loaded(state)}
        for part in ordered_parts(state):
            if part.file not in receipts:
                continue
            if part.generation:
                for row in rows_of(part.file):
                    faults.pop(row, None)
            faults |= {fault.row: fault for fault in receipts[part.file].faults}
        lines = [
            orjson.dumps({"row": one.row, "id": one.id, "code": one.code, "error": one.message})
            for _, one in sorted(faults.items())
        ]
        self._storage.put(layout.load_errors(self.name), b"".join(line + b"\n" for line in lines))

    def finish(self, counts: LoadCounts) -> None:
        """Note that all is in the table."""
        summary = orjson.dumps(counts.as_json(), option=orjson.OPT_INDENT_2)
        self._storage.publish(layout.load_summary(self.name), summary)


def ordered_parts(state: RunState) -> list[Receipt]:
    """The parts of a run that hold rows, older outcomes first."""
    parts = [one for one in state.receipts.values() if one.rows]
    return sorted(parts, key=lambda one: (one.generation, one.chunk, one.sequence))


def load_state(storage: Storage, target: StoreTarget, url: str) -> LoadState:
    """The load into a table, read from the disk."""
    state = LoadState(storage, target.name, url)
    state.refresh()
    return state


def known_loads(storage: Storage, state: RunState) -> list[LoadCounts]:
    """Every load of a run that was begun."""
    found = []
    for name in storage.folders(layout.LOAD):
        raw = storage.read_if_there(layout.load_record(name))
        if raw is not None:
            record = artifacts.load(StoreRecord, raw, layout.load_record(name))
            one = LoadState(storage, name, record.url)
            one.refresh()
            found.append(one.counts(state))
    return found


def total_faults(loads: Sequence[LoadCounts]) -> int:
    """Rows that a database did not take, those without a vector not counted."""
    return sum(
        number for one in loads for code, number in one.faults.items() if code != "no_vector"
    )


def _receipt_name(file: str) -> str:
    return f"{file.rpartition('/')[2].removesuffix('.parquet')}.json"
