"""Rows in, the same rows with their answers out: one engine in the middle of somebody's pipeline.

What a run does over files, without the run directory: rows are checked and tokenised, the feeder
keeps one engine full across the batches that are in work, and a row that is bad, or that kills the
engine, spoils no other. Nothing is committed here; whoever calls keeps what comes out.
"""

from __future__ import annotations

import itertools
import os
import queue
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batchwright.config.job import Job
from batchwright.core.errors import EngineError, Stopped
from batchwright.core.media import has_media
from batchwright.core.outcomes import Outcome
from batchwright.core.records import Chunk, Request, RowBatch
from batchwright.core.schemas import EMBEDDING, INPUT_COLUMN, contract, prepared_schema
from batchwright.core.tasks import TaskSettings
from batchwright.drafts.drafting import Draft, RowPreparer, drafts_to_table
from batchwright.drafts.references import media_limits
from batchwright.engines.feeder import Supervisor
from batchwright.engines.process import EngineProcess
from batchwright.engines.warm_up import start_gate
from batchwright.equip.equipment import answer_reader, engine_settings, job_tokenizer, row_timeout_s
from batchwright.media.pool import MediaPool
from batchwright.read.parquet_records import no_text, records_of
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.prepared import make_requests
from batchwright.rundir.storage import Storage
from batchwright.wiring import engine_target
from batchwright.working.committer import ActiveChunk, Committer, set_copies_apart
from batchwright.working.conforming import Conformer
from batchwright.working.finishing import Finisher
from batchwright.write.json_input import output_names
from batchwright.write.parts import build_part
from batchwright.write.vectors import shown_vectors

STEP_TIMEOUT_S = 0.05

# Of a dataset a row's number means nothing, and its id is a column of its own.
_NOT_SHOWN = ("row", "id")

# Rows whose prompts begin alike run next to each other, for the engine's prefix cache.
_GROUPED = ("auto", "prefix")


@dataclass(slots=True)
class _Batch:
    """A batch on its way: its own columns, the rows that run, and the table of those that do not."""

    table: pa.Table
    active: ActiveChunk
    rejected: pa.Table
    done: Future[pa.Table]


class RowStream:
    """One engine that answers batches of rows, several at a time.

    Args:
        job: the resolved job.
        manifest: of its rows; see `batchwright.ray`.
    """

    def __init__(self, job: Job, manifest: Manifest) -> None:
        self._job = job
        self._task: TaskSettings = job.task_settings()
        self._clock = SystemClock()
        self._scratch = tempfile.TemporaryDirectory(
            prefix="batchwright-", ignore_cleanup_errors=True
        )
        folder = Path(self._scratch.name)
        tokenizer = job_tokenizer(job)
        self._preparer = RowPreparer(job, tokenizer, manifest)
        self._reader = answer_reader(job, folder / "reader.log")
        self._committer = Committer(
            Storage(folder), "stream", self._clock, tokenizer, None, self._task, reader=self._reader
        )
        self._conformer = Conformer(
            Finisher(tokenizer, self._reader),
            job.sampling.schema_retries,
            job.sampling.invalid_output,
        )
        self._media = MediaPool(media_limits(job, manifest.files))
        settings = engine_settings(manifest, job, tokenizer)
        gate = start_gate(settings, os.environ, job.engine.start_timeout_s)
        self._supervisor = Supervisor(
            lambda: EngineProcess(
                engine_target(job.engine.kind, job.task),
                log_path=folder / "engine.log",
                start_timeout_s=job.engine.start_timeout_s,
                hang_timeout_s=job.engine.hang_timeout_s,
                start_gate=gate,
            ),
            settings,
            row_timeout_s=row_timeout_s(job),
        )
        self._numbers = itertools.count()
        self._batches = itertools.count()
        self._coming: queue.SimpleQueue[_Batch] = queue.SimpleQueue()
        self._open: set[Future[pa.Table]] = set()
        self._feeding: _Batch | None = None
        self._owner: dict[int, tuple[_Batch, int]] = {}
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._preparing = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        self._finishing = ThreadPoolExecutor(1, thread_name_prefix="finish")
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def submit(self, table: pa.Table) -> Future[pa.Table]:
        """Answer the rows of a table; the result has the same rows in the same order.

        Returns:
            The table's own columns and those of the output contract. It raises what the engine
            could not go on with.
        """
        done: Future[pa.Table] = Future()
        with self._lock:
            if self._failure is not None:
                done.set_exception(self._failure)
                return done
            self._open.add(done)
        done.add_done_callback(self._open.discard)
        self._preparing.submit(self._prepare, table, done).add_done_callback(
            partial(_pass_on_fault, done)
        )
        return done

    def close(self) -> None:
        """Stop the engine; batches in work end with an error."""
        self._stop.set()
        self._thread.join()
        self._preparing.shutdown(cancel_futures=True)
        self._finishing.shutdown(cancel_futures=True)
        self._scratch.cleanup()

    def _prepare(self, table: pa.Table, done: Future[pa.Table]) -> None:
        kept = table.to_struct_array()
        kept = kept.combine_chunks() if isinstance(kept, pa.ChunkedArray) else kept
        if table.num_rows == 0:
            kept = pa.array([], pa.struct(list(table.schema)))
        lines, paths = list(range(1, table.num_rows + 1)), ["dataset"] * table.num_rows
        spoilt: dict[int, str] = {}
        batch = RowBatch(records_of(kept, spoilt), kept, lines, no_text(spoilt), paths=paths)
        drafts = self._preparer.prepare(batch)
        prepared = drafts_to_table(drafts, batch, prepared_schema(kept.type))
        rows = np.fromiter(self._numbers, np.int64, table.num_rows)
        good = np.array([draft.problem is None for draft in drafts], dtype=bool)
        self._coming.put(
            _Batch(
                table,
                self._active(prepared.filter(pa.array(good)), rows[good]),
                self._rejected(prepared.filter(pa.array(~good)), rows[~good], drafts),
                done,
            )
        )

    def _active(self, prepared: pa.Table, rows: npt.NDArray[np.int64]) -> ActiveChunk:
        requests: Iterator[Request] = make_requests(prepared, rows)
        copies: dict[int, list[int]] = {}
        if self._job.run.repeat_once:
            requests, copies = set_copies_apart(requests)
        if self._job.run.order in _GROUPED and self._task.makes_text:
            requests = iter(sorted(requests, key=lambda one: list(one.token_ids)))
        return ActiveChunk(
            chunk=Chunk(0, next(self._batches), ()),
            prepared=prepared,
            rows=rows,
            requests=requests,
            started_at=self._clock.monotonic(),
            unfinished=len(rows),
            sequence=0,
            copies=copies,
        )

    def _rejected(
        self, prepared: pa.Table, rows: npt.NDArray[np.int64], drafts: list[Draft]
    ) -> pa.Table:
        problems = [draft.problem for draft in drafts if draft.problem is not None]
        outcomes = [
            Outcome(row, [], error_code=code, error=error, attempts=0)
            for row, (code, error) in zip(rows.tolist(), problems, strict=True)
        ]
        part = build_part(prepared, rows, outcomes, task=self._task)
        status = pa.array(["rejected"] * part.num_rows, pa.string())
        return part.set_column(
            part.schema.get_field_index("status"), part.schema.field("status"), status
        )

    def _run(self) -> None:
        try:
            if self._reader is not None:
                self._reader.start()
            self._supervisor.start()
            if self._reader is not None:
                self._reader.wait()
            while not self._stop.is_set():
                self._advance()
            self._fail(Stopped("the engine was stopped"))
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._media.stop()
            self._supervisor.stop()
            if self._reader is not None:
                self._reader.stop()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = error
            waiting = list(self._open)
        for done in waiting:
            if not done.done():
                done.set_exception(error)

    def _advance(self) -> None:
        """Fill the engine, and take out of it what has finished."""
        self._feed()
        if not self._owner:
            return
        outcomes = self._media.take_failed()
        if self._supervisor.in_flight:
            outcomes += self._supervisor.step(STEP_TIMEOUT_S)
        else:
            self._media.wait(STEP_TIMEOUT_S)
        settled, again = self._conformer.judge(outcomes)
        if again:
            self._supervisor.submit(again)
        for outcome in settled:
            batch, prompt_tokens = self._owner.pop(outcome.row)
            batch.active.take_in(outcome, prompt_tokens, time.monotonic())
            self._finish_if_done(batch)

    def _feed(self) -> None:
        room = self._supervisor.room()
        ready = self._media.take(room)
        while len(ready) < room or self._media.wants_more:
            batch = self._feeding = self._feeding or self._next_batch()
            if batch is None:
                break
            request = next(batch.active.requests, None)
            if request is None:
                self._feeding = None
                continue
            self._owner[request.row] = (batch, request.prompt_tokens)
            if has_media(request.extras) or len(ready) >= room:
                self._media.submit(request, partial(batch.active.find_input, request.row))
            else:
                ready.append(request)
        for request in ready:
            self._conformer.watch(request)
        if ready:
            self._supervisor.submit(ready)

    def _next_batch(self) -> _Batch | None:
        """The next batch; waits a little where there is nothing else to do."""
        try:
            batch = self._coming.get(block=not self._owner, timeout=STEP_TIMEOUT_S)
        except queue.Empty:
            return None
        self._finish_if_done(batch)  # none of its rows may run at all
        return batch

    def _finish_if_done(self, batch: _Batch) -> None:
        if batch.active.unfinished == 0:
            work = self._finishing.submit(self._finish, batch)
            work.add_done_callback(partial(_pass_on_fault, batch.done))

    def _finish(self, batch: _Batch) -> None:
        outcomes = batch.active.hand_over(time.monotonic())
        answered = self._committer.part_of(batch.active, outcomes)
        part = pa.concat_tables([answered, batch.rejected]).sort_by("row").combine_chunks()
        if batch.done.set_running_or_notify_cancel():
            batch.done.set_result(with_answers(batch.table, part, self._task))


def _pass_on_fault(done: Future[pa.Table], work: Future[None]) -> None:
    """A fault of ours ends the batch, and does not leave it waiting."""
    error = EngineError("the stream was closed") if work.cancelled() else work.exception()
    if error is not None and not done.done():
        done.set_exception(error)


def with_answers(table: pa.Table, part: pa.Table, task: TaskSettings) -> pa.Table:
    """The columns of some rows, and their answers; a name of ours gets the prefix `input_`."""
    shown: dict[str, Any] = {
        field.name: part.column(field.name)
        for field in contract(task)
        if field.name not in _NOT_SHOWN
    }
    if task.vectors is not None:
        shown[EMBEDDING] = shown_vectors(part, task.vectors)
    names = output_names(table.column_names, shown)
    own = {names[name]: table.column(name) for name in table.column_names}
    assert INPUT_COLUMN not in shown
    return pa.table({**own, **shown})
