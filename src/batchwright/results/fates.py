"""The rows of a run by fate: which parts have them, the rows themselves, and why they failed."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from batchwright.core.failures import Failure, FailureGroup, group_failures, in_all
from batchwright.core.records import OrderBatch, OrderedPart, Receipt
from batchwright.results.exporting import committed_rows, first_pass
from batchwright.rundir.manifest import Manifest, read_manifest
from batchwright.rundir.prepared import paths_of, read_columns
from batchwright.rundir.rejected import RejectedRows
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage
from batchwright.write.export import Committed

STATUSES = ("ok", "failed", "rejected", "truncated", "invalid")

# Parts that are looked at for the reasons of failures; of each code at least the first few.
PARTS_AT_MOST = 64
_PARTS_PER_CODE = 4

_REASON = ("row", "status", "error_code", "error")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows.

    Attributes:
        statuses: any of STATUSES; `truncated` are answers that were cut at `max_tokens`, `invalid`
            those that do not keep to their schema.
        codes: only rows with one of these codes; all if empty.
    """

    statuses: frozenset[str]
    codes: frozenset[str] = frozenset()

    @property
    def rejected(self) -> bool:
        """Whether rejected rows are among them."""
        return "rejected" in self.statuses

    def may_be_in(self, receipt: Receipt) -> bool:
        """Whether a part may have such rows, by its receipt alone."""
        failures = receipt.failures
        # The receipts of the first runs do not tell the codes.
        coded = not (self.codes and failures) or not self.codes.isdisjoint(failures)
        found = {
            "ok": receipt.ok > 0,
            "failed": receipt.failed > 0,
            "truncated": receipt.truncated > 0,
            "invalid": receipt.failed > 0 and (not failures or "invalid_output" in failures),
        }
        return coded and any(found.get(status, False) for status in self.statuses)

    def choose(self, table: pa.Table) -> pa.Table:
        """The rows of a table that are wanted."""
        status = table.column("status")
        found: Any = pc.is_in(status, pa.array(sorted(self.statuses), pa.string()))
        if "truncated" in self.statuses and "finish_reason" in table.column_names:
            cut = pc.equal(table.column("finish_reason"), "length")
            found = pc.or_(found, pc.fill_null(cut, False))  # noqa: FBT003
        code = table.column("error_code")
        if "invalid" in self.statuses:
            invalid = pc.equal(code, "invalid_output")
            found = pc.or_(found, pc.fill_null(invalid, False))  # noqa: FBT003
        if self.codes:
            named = pc.is_in(code, pa.array(sorted(self.codes), pa.string()))
            found = pc.and_(found, named)
        return table.filter(found)


WITHOUT_ANSWER = Wanted(frozenset({"failed", "rejected"}))


class Place(NamedTuple):
    """Where a row stands in the input: the file, and the line (in Parquet, the row) there."""

    path: str
    line: int


class Fates:
    """The rows of a run, as it was when it was opened.

    Args:
        storage: the run directory.
        manifest: its manifest.
    """

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self._storage = storage
        self.state = RunState(storage)
        self.state.refresh()
        self.state.refresh_order()  # a receipt may be of a chunk that was cut meanwhile
        self._manifest = manifest
        parts = [part for batch in first_pass(self.state) for part in batch.parts if part.rows]
        self._parts = parts
        self._first_rows = [part.first_row for part in parts]

    def committed(self, wanted: Wanted) -> Committed:
        """The committed rows without the parts that have none of the wanted ones."""
        every = committed_rows(self._storage, self._manifest, self.state, complete=False)
        return restricted(every, wanted)

    def tables(
        self, wanted: Wanted, scratch: Path | None = None, columns: Sequence[str] = ()
    ) -> Iterator[pa.Table]:
        """The wanted rows, with the columns of a part.

        Args:
            wanted: which.
            scratch: an empty folder, for rows in input order; None gives them as they lie.
            columns: only these columns; all if empty. Others are not read.
        """
        every = committed_rows(
            self._storage, self._manifest, self.state, complete=False, shaped=False
        )
        committed = restricted(every, wanted)
        schema = committed.schema
        if columns:
            schema = pa.schema([field for field in schema if field.name in columns])
        in_order = scratch is not None
        for table in committed.rows(schema, scratch or Path(), in_order=in_order):
            found = wanted.choose(table)
            if found.num_rows:
                yield found

    def places(self, rows: Sequence[int]) -> dict[int, Place]:
        """Where rows stand in the input."""
        by_part: dict[int, list[int]] = {}
        for row in rows:
            by_part.setdefault(bisect_right(self._first_rows, row) - 1, []).append(row)
        found: dict[int, Place] = {}
        for index, inside in by_part.items():
            part = self._parts[index]
            lines = read_columns(self._storage, part.file, ["line"]).column("line")
            indexes = [row - part.first_row for row in inside]
            paths = paths_of(self._storage, part, self._manifest.splits, indexes)
            for row, at, path in zip(inside, indexes, paths, strict=True):
                found[row] = Place(path, lines[at].as_py() + part.first_line)
        return found


def restricted(committed: Committed, wanted: Wanted) -> Committed:
    """Committed rows without the parts that have none of the wanted ones.

    Those of a retry stay: a row of an earlier pass counts only if they have it not.
    """
    parts = [one for one in committed.parts if one.generation > 0 or wanted.may_be_in(one)]
    rejected = committed.rejected if wanted.rejected else ()
    return replace(committed, parts=parts, rejected=rejected, complete=False)


def failure_groups(
    storage: Storage,
    state: RunState | None = None,
    *,
    wanted: Wanted = WITHOUT_ANSWER,
    parts_at_most: int = PARTS_AT_MOST,
) -> tuple[FailureGroup, ...]:
    """Why rows have no answer, those that fail alike together, the most first.

    In a large run some parts are looked at, chosen so that no code is missing, and the counts are
    estimates by the totals of the receipts.

    Args:
        storage: the run directory.
        state: its order and receipts, if they have been read already.
        wanted: which rows; only failed and rejected ones have a reason.
        parts_at_most: of the output and of the input that are read.
    """
    if state is None:
        state = RunState(storage)
        state.refresh()
        state.refresh_order()
    manifest = read_manifest(storage)
    committed = committed_rows(storage, manifest, state, complete=False, shaped=False)
    failed = _failed(committed, state, wanted, parts_at_most)
    refused = _rejected(storage, state, wanted, parts_at_most) if wanted.rejected else ()
    return tuple(sorted((*failed, *refused), key=lambda one: (-one.count, one.code, one.pattern)))


def _failed(
    committed: Committed, state: RunState, wanted: Wanted, parts_at_most: int
) -> tuple[FailureGroup, ...]:
    with_some = [one for one in committed.parts if one.failed and wanted.may_be_in(one)]
    first = [one for one in with_some if one.generation == 0]
    chosen = _choose(first, parts_at_most)
    if not with_some:
        return ()
    later = [one for one in committed.parts if one.generation > 0]
    looked_at = replace(committed, parts=[*chosen, *later], rejected=())
    schema = pa.schema([field for field in committed.schema if field.name in _REASON])
    tables = looked_at.rows(schema, Path(), in_order=False)
    only = Wanted(wanted.statuses & {"failed", "invalid"}, wanted.codes)
    groups = group_failures(chain.from_iterable(map(_failures, map(only.choose, tables))))
    return groups if len(chosen) == len(first) else in_all(groups, state.counts().failures)


def _choose(parts: Sequence[Receipt], at_most: int) -> list[Receipt]:
    """Some of the parts: a few for each code, the rest from all over the run."""
    if len(parts) <= at_most:
        return list(parts)
    chosen: dict[str, Receipt] = {}
    seen: Counter[str] = Counter()
    for part in parts:
        if any(seen[code] < _PARTS_PER_CODE for code in part.failures):
            seen.update(part.failures.keys())
            chosen[part.file] = part
    room = max(0, at_most - len(chosen))
    for part in parts[:: max(1, len(parts) // max(1, room))][:room]:
        chosen[part.file] = part
    return list(chosen.values())


def _rejected(
    storage: Storage, state: RunState, wanted: Wanted, parts_at_most: int
) -> tuple[FailureGroup, ...]:
    batches = first_pass(state)
    bad = _with_rejected(batches)
    step = max(1, -(-len(bad) // parts_at_most))
    chosen = set(bad[::step])
    only = [_only(batch, chosen) for batch in batches]
    tables = RejectedRows(storage, only)
    failures = chain.from_iterable(_refusals(table, wanted.codes) for table in tables)
    groups = group_failures(failures)
    if step == 1:
        return groups
    return in_all(groups, None, sum(batch.rejected for batch in batches))


def _with_rejected(batches: Sequence[OrderBatch]) -> list[str]:
    """The prepared parts that have rejected rows."""
    found = []
    for batch in batches:
        repeated = {duplicate.file for duplicate in batch.duplicates}
        found += [part.file for part in batch.parts if part.rejected or part.file in repeated]
    return found


def _only(batch: OrderBatch, files: set[str]) -> OrderBatch:
    kept: tuple[OrderedPart, ...] = tuple(part for part in batch.parts if part.file in files)
    return replace(batch, parts=kept)


def _failures(table: pa.Table) -> Iterator[Failure]:
    for row in table.select(list(_REASON)).to_pylist():
        yield Failure(row["row"], row["status"], row["error_code"] or "", row["error"] or "")


def _refusals(table: pa.Table, codes: frozenset[str]) -> Iterator[Failure]:
    for row in table.select(["row", "error_code", "error"]).to_pylist():
        if not codes or row["error_code"] in codes:
            yield Failure(row["row"], "rejected", row["error_code"], row["error"] or "")


def totals_by_code(groups: Sequence[FailureGroup]) -> Mapping[tuple[str, str], int]:
    """Rows of all groups of a status and a code."""
    totals: Counter[tuple[str, str]] = Counter()
    for group in groups:
        totals[group.status, group.code] += group.count
    return totals
