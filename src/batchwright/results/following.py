"""A process beside a run that loads its committed parts, and does not keep the engines waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from batchwright.config.job import Job
from batchwright.config.sections import LoadTarget
from batchwright.core.errors import BatchwrightError, Stopped, StoreError, StoreTaken
from batchwright.core.stores import LoadCounts
from batchwright.equip.coherence import check_loads
from batchwright.executors.local import MAX_RESTARTS, LocalExecutor
from batchwright.results.loading import Loader
from batchwright.rundir import layout
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.events import Events
from batchwright.rundir.heartbeat import Heartbeat, reported_error
from batchwright.rundir.ledger import Ledger, new_worker_name, read_heartbeat
from batchwright.rundir.loads import known_loads
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.state import read_state
from batchwright.rundir.storage import Storage

LOOK_EVERY_S = 0.25
LEAVE_S = 20.0


class Following:
    """Watches the process that loads; a fault of the database does not end the run."""

    def __init__(self, storage: Storage, job: Job) -> None:
        self._storage = storage
        self._job = job
        self._logs = storage.local_folder(layout.LOGS)
        self._executor = LocalExecutor(storage.location, self._logs)
        self._events = Events(storage, new_worker_name("driver"), SystemClock())
        self._name = ""
        self._deaths = 0
        self.error: BatchwrightError | None = None

    def start(self) -> None:
        """Start the process."""
        self._name = new_worker_name("load")
        self._executor.start("load", self._name)

    def look(self) -> bool:
        """Whether it still works; one that died without a word is started again."""
        for ended in self._executor.poll():
            if ended.exit_code == 0:
                continue
            self.error = reported_error(read_heartbeat(self._storage, ended.name))
            self._deaths += 1
            said = self.error.message if self.error else f"exit code {ended.exit_code}"
            self._events.write("load_failed", reason=said)
            if self.error is None and self._deaths > MAX_RESTARTS:
                self.error = StoreError(
                    f"the process that loads keeps dying (exit code {ended.exit_code})",
                    f"Look at the end of {self._logs / ended.name}.log.",
                )
            elif self.error is None:
                self.start()
        return bool(self._executor.running)

    def wait(self, stop: threading.Event) -> tuple[LoadCounts, ...]:
        """Let it load what is left, and return what became of it.

        Raises:
            Stopped: `stop` was set.
            BatchwrightError: why not all is in the database; the run itself is complete.
        """
        while self.look():
            if stop.wait(LOOK_EVERY_S):
                raise Stopped("stopped while loading", "Run the same command again: it goes on.")
        if self.error is not None:
            raise type(self.error)(
                f"the run is complete, but not all of it is loaded: {self.error.message}",
                f"{self.error.hint} Then: batchwright load {self._storage.location}".strip(),
            )
        return load_counts(self._storage)

    def close(self) -> None:
        """Ask it to stop, and see to it."""
        self._executor.cancel(LEAVE_S)


@contextmanager
def following(storage: Storage, manifest: Manifest, job: Job) -> Iterator[Following]:
    """Load while a run runs, where its job says so.

    Raises:
        JobError: a table does not fit: said before the first row.
        StoreError: a database cannot be reached.
    """
    follower = Following(storage, job)
    if job.load:
        ledger = Ledger(storage, new_worker_name("load"), SystemClock(), job.run.lease_s)
        stop = threading.Event()
        loaders = [Loader(storage, manifest, job, one, ledger, stop) for one in job.load]
        needed = [loader.check() for loader in loaders]
        if any(needed):
            follower.start()
    try:
        yield follower
    finally:
        follower.close()


def load_counts(storage: Storage) -> tuple[LoadCounts, ...]:
    """How far each load of a run is."""
    state = read_state(storage)
    return tuple(known_loads(storage, state))


def load_now(
    storage: Storage,
    manifest: Manifest,
    job: Job,
    targets: Sequence[LoadTarget],
    stop: threading.Event,
    *,
    again: bool = False,
    watch: Callable[[Loader], None] | None = None,
) -> list[LoadCounts]:
    """Load what a run has committed, one table after the other.

    Args:
        storage: of the run.
        manifest: of the run.
        job: the resolved job.
        targets: the tables.
        stop: set it to end early.
        again: write all rows once more.
        watch: told now and then (loader) how far it is.
    """
    check_loads(job, targets)
    name = new_worker_name("load")
    ledger = Ledger(storage, name, SystemClock(), job.run.lease_s)
    ledger.refresh()
    found = []
    for wanted in targets:
        loader = Loader(storage, manifest, job, wanted, ledger, stop, all_again=again)

        def state(loader: Loader = loader) -> dict[str, Any]:
            if watch is not None:
                watch(loader)
            return {"role": "load", "phase": loader.phase, "loaded": loader.rows_sent}

        with Heartbeat(ledger, state, job.run.lease_s):
            found.append(loader.run(follow=False))
    return found


def load_rest(storage: Storage, manifest: Manifest, job: Job, stop: threading.Event) -> None:
    """Load a complete run where its job says so, unless that is done or another process is at it.

    Workers without a leader end with this: whoever is free does it.
    """
    done = {one.url for one in load_counts(storage) if one.finished}
    for wanted in job.load:
        if wanted.to not in done:
            with suppress(
                StoreTaken
            ):  # if that process dies, whoever takes its place comes by here
                load_now(storage, manifest, job, [wanted], stop)
