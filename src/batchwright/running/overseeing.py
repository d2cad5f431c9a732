"""What a run without a leader still needs: somebody who counts, and ends a job that is all wrong."""

from __future__ import annotations

import dataclasses
import threading
from types import TracebackType
from typing import Any

import orjson

from batchwright.config.job import Job
from batchwright.core.errors import BatchwrightError, StorageError, TooManyFailures
from batchwright.core.ports import Clock
from batchwright.rundir import layout
from batchwright.rundir.heartbeat import reported_error
from batchwright.rundir.ledger import Ledger
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.state import Counts, RunState
from batchwright.rundir.storage import Storage
from batchwright.running.drive import Progress, Watch
from batchwright.running.progress import Rate, expected_rows
from batchwright.running.verdict import judge_rows

# In an object store four times as seldom: see `Storage.seldom`.
LOOK_EVERY_S = 2.5


class Overseer:
    """Shows how far the run is, and stops this worker when the whole job turns out to be wrong.

    One worker claims to read all receipts and writes what it finds to `progress.json`; the others
    read only that. If it ends or dies, another one claims.

    Args:
        storage: of the run.
        manifest: of the run.
        job: the resolved job.
        name: of this worker, whose heartbeat another thread keeps fresh.
        clock: the time.
        watch: told how far the run is.
        stop: set when the job is all wrong; `error` then says why.
    """

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        job: Job,
        name: str,
        clock: Clock,
        watch: Watch,
        stop: threading.Event,
    ) -> None:
        self._storage = storage
        self._manifest = manifest
        self._job = job
        self._ledger = Ledger(storage, name, clock, job.run.lease_s)
        self._clock = clock
        self._watch = watch
        self._stop = stop
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oversee", daemon=True)
        self._state = RunState(storage)
        self._rate = Rate()
        # An earlier start may have been ended; what was wrong may have been mended since.
        self._old_verdict = self._read().get("error")
        self.error: BatchwrightError | None = None

    def __enter__(self) -> Overseer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        self._ledger.refresh()
        while True:
            try:
                self.look()
            except TooManyFailures as error:
                self.error = error
                self._stop.set()
                return
            except StorageError:  # the work itself will meet it too, and knows what to do
                pass
            if self._done.wait(self._storage.seldom(LOOK_EVERY_S)):
                return

    def look(self) -> None:
        """Read the run if that is this worker's part, else what another one has found.

        Raises:
            TooManyFailures: see `run.stop_at_failed`.
        """
        holds = self._ledger.holds(layout.OVERSEE_UNIT)
        if not (holds or self._ledger.claim(layout.OVERSEE_UNIT)):
            self._follow(self._read())
            return
        self._state.refresh()
        progress = self._progress(self._state.counts())
        self._watch(progress)
        self._write(progress, None)
        if self._state.generations > 1 or progress.counts.complete:
            return
        try:
            judge_rows(progress.counts, self._job.run.stop_at_failed, self._storage)
        except TooManyFailures as error:
            self._write(progress, error)
            raise

    def _follow(self, found: dict[str, Any]) -> None:
        if not found:
            return
        counts = Counts(**found["counts"])
        self._watch(Progress(self._storage.place, counts, **found["progress"]))
        if found["error"] is not None and found["error"] != self._old_verdict:
            error = reported_error(found)
            assert isinstance(error, TooManyFailures)
            raise error

    def _progress(self, counts: Counts) -> Progress:
        expected = expected_rows(self._state, counts, self._manifest, self._job)
        now = self._clock.monotonic()
        rows_per_s, tokens_per_s = self._rate.add(now, counts.done, counts.completion_tokens)
        left = max(0, expected - counts.done)
        return Progress(
            run_dir=self._storage.place,
            counts=counts,
            rows_expected=expected,
            rows_done=counts.done,
            rows_per_s=rows_per_s,
            tokens_per_s=tokens_per_s,
            eta_s=left / rows_per_s if rows_per_s else None,
            phase="finishing" if counts.complete else "running",
        )

    def _write(self, progress: Progress, error: BatchwrightError | None) -> None:
        shown = ("rows_expected", "rows_done", "rows_per_s", "tokens_per_s", "eta_s", "phase")
        body = {
            "at": self._clock.now(),
            "worker": self._ledger.worker,
            "counts": dataclasses.asdict(progress.counts),
            "progress": {name: getattr(progress, name) for name in shown},
            "error": error and {"kind": type(error).__name__, "message": error.message,
                                "hint": error.hint, "by": self._ledger.worker},
        }  # fmt: skip
        self._storage.put(layout.PROGRESS, orjson.dumps(body))

    def _read(self) -> dict[str, Any]:
        found = orjson.loads(self._storage.read_if_there(layout.PROGRESS) or b"{}")
        return dict(found)
