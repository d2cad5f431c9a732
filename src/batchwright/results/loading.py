"""The committed parts of a run into a vector database: each once, going on where a load stopped."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from batchwright.config.job import Job
from batchwright.config.sections import LoadTarget
from batchwright.core.errors import JobError, Stopped, StoreError, StoreTaken
from batchwright.core.ports import VectorStore
from batchwright.core.records import Receipt
from batchwright.core.schemas import JSON_INPUT
from batchwright.core.stores import (
    ID,
    LoadCounts,
    RowFault,
    StoreColumn,
    StoreShape,
    StoreTarget,
    parse_target,
)
from batchwright.core.vectors import EmbeddingSettings
from batchwright.load.rows import make_rows, refuse
from batchwright.load.seen import SeenIds
from batchwright.load.sending import Sender, Sending
from batchwright.load.under_way import InFlight, PartUnderWay
from batchwright.results.carried import Carried, carried
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.events import Events
from batchwright.rundir.ledger import Ledger
from batchwright.rundir.loads import LoadState, load_state
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage
from batchwright.wiring import open_store
from batchwright.write.part_streams import read_batches

# While the run commits nothing, it is looked at this often.
LOOK_EVERY_S = 0.25


class Loader:
    """Loads a run into one table.

    Args:
        storage: of the run.
        manifest: of the run.
        job: the resolved job.
        wanted: the table, and how rows are stored there.
        ledger: of this process; one process at a time loads into a table.
        stop: set it to end early.
        all_again: write all rows, those that are there too.
    """

    def __init__(
        self, storage: Storage, manifest: Manifest, job: Job, wanted: LoadTarget, ledger: Ledger,
        stop: threading.Event, *, all_again: bool = False,
    ) -> None:  # fmt: skip
        self._storage = storage
        self._manifest = manifest
        self._job = job
        self._wanted = wanted
        self._ledger = ledger
        self._stop = stop
        self._all_again = all_again
        self._clock = SystemClock()
        self._target: StoreTarget = parse_target(wanted.to)
        self._store: VectorStore = open_store(self._target)
        self._run = RunState(storage)
        self._loads: LoadState = load_state(storage, self._target, wanted.to)
        self._sender: Sender | None = None
        self._seen: SeenIds | None = None
        self._rows_under_way = 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="send")
        self._in_flight: InFlight | None = None
        self._sent_at = 0.0
        self._known: tuple[int, Carried] | None = None
        self.phase = "starting"

    def check(self) -> bool:
        """Refuse now, and not at the first row, a table that does not fit. Nothing is written.

        Returns:
            Whether there is, or will be, anything to load.

        Raises:
            JobError: a mismatch.
            StoreError: the database cannot be reached.
        """
        self._refresh()
        if self.counts().finished:
            return False
        try:
            self._store.open(self._shape(None), create=False)
        finally:
            self._store.close()
        return True

    def counts(self) -> LoadCounts:
        """How far it is, the rows of the part under way not counted."""
        return self._loads.counts(self._run)

    @property
    def rows_sent(self) -> int:
        """Rows in the database, those of the part under way too."""
        return sum(one.loaded for one in self._loads.receipts.values()) + self._rows_under_way

    def run(self, *, follow: bool) -> LoadCounts:
        """Load every part that is committed; with `follow`, until the run has no more to come.

        Raises:
            JobError: the table does not fit, or the run has no such column.
            StoreError: the database cannot be reached, or takes nothing.
            Stopped: what is loaded until then stays, and is not loaded again.
        """
        if not self._ledger.claim(f"load-{self._target.name}"):
            raise StoreTaken(
                f"another process loads this run into {self._wanted.to}",
                "Wait for it to end, or stop it.",
            )
        try:
            self._refresh()
            self._wait_for_columns(follow=follow)
            if self._loads.pending(self._run) or not follow or not self.counts().finished:
                self._begin()
                self._load_all(follow=follow)
            return self.counts()
        finally:
            self._end()

    def _refresh(self) -> None:
        self._run.refresh()

    def _wait_for_columns(self, *, follow: bool) -> None:
        """Types of columns that are JSON are known when all rows have been read."""
        typed = self._store.limits.typed and self._manifest.arrow_input_type() == JSON_INPUT
        while typed and self._wanted.columns != "none" and not self._run.ordered:
            if not follow:
                raise JobError(
                    "the run has not read all of its input yet, so the columns' types are not known",
                    "Load again when it has, or without columns: --columns none.",
                )
            self._pause(LOOK_EVERY_S)
            self._refresh()

    def _begin(self) -> None:
        """Connect, make the table if it is not there, and be ready to send."""
        shape = self._shape(self._carried().columns)
        if not self._all_again:
            self._loads.refuse_changes(self._settings(shape))
        there = self._store.open(shape, create=True)
        # Somebody may have removed the table since: what was loaded is not there any more then.
        if self._all_again or (not there and self._loads.receipts):
            self._loads.forget()
        self._loads.begin(self._settings(shape))
        limits, wanted = self._store.limits, self._wanted
        size = limits.batch_bytes if wanted.batch_mb is None else int(wanted.batch_mb * 2**20)
        parallel = wanted.parallel or limits.parallel
        sending = Sending(size, 1 if limits.parallel == 1 else parallel, self._pause)
        self._sender = Sender(self._store, sending)
        self._sent_at = self._clock.monotonic()
        if limits.merges_ids or wanted.id != "auto" or self._job.input.duplicate_ids == "allow":
            self._seen = self._ids_so_far()

    def _load_all(self, *, follow: bool) -> None:
        while True:
            self._load_parts(self._loads.pending(self._run))
            complete = self._run.counts().complete
            self._refresh()
            if self._loads.pending(self._run):
                continue
            if complete:
                break
            if not follow:
                return
            self.phase = "waiting for rows"
            self._pause(LOOK_EVERY_S)
            self._sent_at = self._clock.monotonic()
        self._conclude()

    def _load_parts(self, parts: Sequence[Receipt]) -> None:
        """Small parts go together: each request costs, and LanceDB makes a version of each."""
        self.phase = "loading" if parts else self.phase
        limits = self._store.limits
        under_way: list[PartUnderWay] = []
        held_bytes = 0
        for _, generation in itertools.groupby(parts, key=lambda one: one.generation):
            for receipt in generation:
                part = PartUnderWay(receipt)
                under_way.append(part)
                for results in self._results(receipt):
                    part.rows += results.num_rows
                    part.unsent.append(self._fit(results, part))
                    held_bytes += part.unsent[-1].nbytes
                    if held_bytes >= limits.batch_bytes * limits.parallel:
                        self._send(under_way)
                        held_bytes = 0
                part.read = True
            self._send(under_way)
            self._collect()  # a newer outcome of a row must come after the older one

    def _send(self, under_way: list[PartUnderWay]) -> None:
        """Send what is held once all before it is there; the parts stay in the list that go on."""
        if self._stop.is_set():
            raise Stopped("stopped", "Load again: it goes on where it stopped.")
        self._collect()
        sent = [(part, part.hand_over()) for part in under_way]
        tables = [table for _, held in sent for table in held]
        done = [part for part in under_way if part.read]
        if tables or done:
            self._in_flight = InFlight(sent, done, self._pool.submit(self._send_all, tables))
        under_way[:] = [part for part in under_way if not part.read]

    def _send_all(self, tables: list[pa.Table]) -> list[RowFault]:
        assert self._sender is not None, "made at the beginning"
        return self._sender.send(pa.concat_tables(tables).combine_chunks()) if tables else []

    def _collect(self) -> None:
        """Wait for the rows that are being sent, and note the parts that are done with them."""
        flight, self._in_flight = self._in_flight, None
        if flight is None:
            return
        faults = flight.faults.result()
        for part, tables in flight.sent:
            part.take_in(tables, faults)
        now = self._clock.monotonic()
        for part in flight.done:
            seconds = (now - self._sent_at) / len(flight.done)
            self._loads.add(part.as_receipt(self._clock.now(), seconds))
        self._sent_at = now
        self._rows_under_way = sum(part.loaded for part, _ in flight.sent if not part.read)

    def _fit(self, results: pa.Table, so_far: PartUnderWay) -> pa.Table:
        """The rows that can be stored; the others become faults."""
        known = self._carried()
        rows, faults = make_rows(results, known.layout, self._shape(known.columns))
        fitted = self._store.fit(rows)
        rows = fitted.rows
        so_far.faults += faults + fitted.faults
        for code, number in fitted.warnings.items():
            so_far.warnings[code] = so_far.warnings.get(code, 0) + number
        if self._seen is not None and rows.num_rows:
            again = self._seen.add(self._store.identities(rows.column(ID).to_pylist()))
            problem = "an earlier row has the same id in the database"
            rows, repeated = refuse(rows, dict.fromkeys(again, problem), "duplicate_id")
            so_far.faults += repeated
        return rows

    def _results(self, part: Receipt) -> Iterator[pa.Table]:
        """The rows of a part as in the results, as many at a time as may be sent at once."""
        known = self._carried()
        shape, schema = known.results, known.part
        room = self._store.limits.batch_bytes * self._store.limits.parallel
        held: list[pa.Table] = []
        for batch in read_batches(self._storage, part.file, schema.names):
            held.append(pa.Table.from_batches([batch]).cast(schema))
            if sum(one.nbytes for one in held) >= room:
                yield shape.to_table(pa.concat_tables(held).combine_chunks())
                held = []
        if held:
            yield shape.to_table(pa.concat_tables(held).combine_chunks())

    def _ids_so_far(self) -> SeenIds:
        """The ids of the rows that an earlier start has loaded."""
        seen = SeenIds()
        known = self._carried()
        for receipt in self._loads.loaded(self._run):
            faulty = {fault.row for fault in receipt.faults}
            part = next(one for one in self._run.receipts.values() if one.file == receipt.file)
            for results in self._results(part):
                rows, _ = make_rows(results, known.layout, self._shape(known.columns))
                pairs = zip(
                    rows.column("row").to_pylist(), rows.column(ID).to_pylist(), strict=True
                )
                ids = [name for row, name in pairs if row not in faulty]
                seen.add(self._store.identities(ids))
        return seen

    def _conclude(self) -> None:
        """Build the index, and see that all is there."""
        self.phase = "building the index"
        events = Events(self._storage, self._ledger.worker, self._clock)
        for note in self._store.finish():
            events.write("load_note", to=self._wanted.to, note=note)
        counts, found = self.counts(), self._store.count()
        if found < counts.loaded:
            raise StoreError(
                f"{self._wanted.to} has {found:,} rows, but {counts.loaded:,} were loaded: somebody has "
                "removed some",
                "Load all rows again: batchwright load RUN --again.",
            )
        self._loads.finish(counts)

    def _end(self) -> None:
        self._pool.shutdown(wait=True)
        if self._sender is not None:
            self._sender.close()
            self._loads.list_faults(self._run, self._rows_of)
        self._store.close()
        self.phase = "done"

    def _rows_of(self, file: str) -> Iterator[int]:
        for batch in read_batches(self._storage, file, ["row"]):
            yield from batch.column(0).to_pylist()

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise Stopped("stopped", "Load again: it goes on where it stopped.")

    def _carried(self) -> Carried:
        """What is read and stored, by what is known of the input; that grows while rows are prepared."""
        batches = [batch for batch in self._run.batches if batch.generation == 0]
        if self._known is None or self._known[0] != len(batches):
            found = carried(
                self._storage, self._manifest, batches, self._wanted,
                with_typed_ids=not self._store.limits.typed,
            )  # fmt: skip
            self._known = (len(batches), found)
        return self._known[1]

    def _vectors(self) -> EmbeddingSettings:
        vectors = Job.model_validate(self._manifest.job).task_settings().vectors
        assert vectors is not None, "checked: the task is embed"
        return vectors

    def _shape(self, columns: tuple[StoreColumn, ...] | None) -> StoreShape:
        vectors, wanted = self._vectors(), self._wanted
        half = vectors.dtype == "float16"
        return StoreShape(vectors.dimensions, half, wanted.metric, columns, wanted.index)

    def _settings(self, shape: StoreShape) -> dict[str, Any]:
        wanted = self._wanted
        return {
            "id": wanted.id, "columns": wanted.columns, "metric": wanted.metric,
            "dimensions": shape.dimensions,
        }  # fmt: skip
