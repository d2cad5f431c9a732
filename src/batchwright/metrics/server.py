"""Serves a run's metrics under `/metrics`, read when somebody asks."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import PurePosixPath
from typing import Any

from batchwright import __version__
from batchwright.config.job import Job
from batchwright.core.errors import JobError, StorageError
from batchwright.metrics import of_run, of_workers
from batchwright.metrics.words import Family, Look, WorkerLook
from batchwright.rundir.ledger import Roster
from batchwright.rundir.manifest import existing_run
from batchwright.rundir.promised import read_pilot
from batchwright.rundir.readings import reading_from
from batchwright.running.drive import Progress, Watch

FAMILIES: tuple[Family, ...] = (*of_run.FAMILIES, *of_workers.FAMILIES)

# Files are read at most so often, however many ask.
LOOK_EVERY_S = 1.0
PILOT_EVERY_S = 30.0


class RunLook:
    """What is known of a run, read again when it is asked for and not fresh.

    Args:
        workers: names of those to tell of; None for all.
        monotonic: seconds that never go back.
        now: Unix time.
    """

    def __init__(
        self,
        workers: Collection[str] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._wanted = workers
        self._monotonic = monotonic
        self._started_at = now()
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._run: _Run | None = None
        self._look: Look | None = None
        self._looked_at = float("-inf")

    def watch(self, progress: Progress) -> None:
        """Take in how far the run is."""
        self._progress = progress

    def look(self) -> Look | None:
        """The run now; None before it has begun."""
        with self._lock:
            progress = self._progress
            if progress is None:
                return None
            # What cannot be read now may be read next time: the run itself will say so.
            with contextlib.suppress(StorageError):
                self._refresh(progress)
            return self._look

    def _refresh(self, progress: Progress) -> None:
        if self._run is None:
            self._run = _Run(progress)
        now = self._monotonic()
        if now - self._looked_at < self._run.storage.seldom(LOOK_EVERY_S):
            return
        self._looked_at = now
        workers = [
            WorkerLook(name, heartbeat, reading_from(heartbeat.get("reading")))
            for name, heartbeat in self._run.roster.read().items()
            if heartbeat.get("at", 0.0) >= self._started_at
            and (self._wanted is None or name in self._wanted)
        ]
        self._look = Look(
            run=self._run.name,
            about=self._run.about,
            started_at=self._started_at,
            progress=progress,
            estimated_s=self._run.estimated_s(now),
            limit_s=self._run.limit_s,
            workers=tuple(workers),
        )


class _Run:
    """A run directory, and what is read of it once or seldom."""

    def __init__(self, progress: Progress) -> None:
        self.storage, manifest = existing_run(progress.run_dir)
        job = Job.model_validate(manifest.job)
        self.name = PurePosixPath(self.storage.location).name
        self.roster = Roster(self.storage)
        self.about = {
            "directory": self.storage.location,
            "model": job.model.name,
            "task": job.task,
            "engine": job.engine.kind,
            "executor": job.run.executor,
            "version": __version__,
        }
        hours = job.plan.max_hours
        self.limit_s = None if hours is None else 3600 * hours
        self._estimated_s: float | None = None
        self._read_at = float("-inf")

    def estimated_s(self, now: float) -> float | None:
        """What the pilot says that the whole takes; it may still say otherwise when all is known."""
        if now - self._read_at >= PILOT_EVERY_S:
            self._read_at = now
            pilot = read_pilot(self.storage)
            self._estimated_s = None if pilot is None else 3600 * pilot.hours.estimate
        return self._estimated_s


class Collector:
    """The families of a look in the words of prometheus_client."""

    def __init__(self, look: Callable[[], Look | None]) -> None:
        self._look = look

    def describe(self) -> list[Any]:
        """Nothing is known before a run is there."""
        return []

    def collect(self) -> Iterator[Any]:
        """Every metric that has a sample now."""
        from prometheus_client.core import Metric

        look = self._look()
        for family in FAMILIES if look is not None else ():
            assert look is not None
            samples = [(labels, one) for labels, one in family.values(look) if one is not None]
            if not samples:
                continue
            metric = Metric(family.name.removesuffix("_total"), family.text, family.kind)
            for labels, value in samples:
                metric.add_sample(family.name, labels, float(value))
            yield metric


@contextlib.contextmanager
def serving(
    port: int | None, watch: Watch, workers: Collection[str] | None = None
) -> Iterator[Watch]:
    """Serve the metrics of the run that `watch` is told of, while the block runs.

    Args:
        port: on all of this machine's addresses; None serves nothing.
        watch: who else is told how far the run is.
        workers: names of those to tell of; None for all.

    Yields:
        What to call with how far the run is.

    Raises:
        JobError: the port cannot be had.
    """
    if port is None:
        yield watch
        return
    from prometheus_client import CollectorRegistry, start_http_server

    run = RunLook(workers)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(run.look))
    try:
        server, thread = start_http_server(port, registry=registry)
    except OSError as error:
        raise JobError(
            f"metrics cannot be served on port {port}: {error.strerror}",
            "Give another port (--metrics-port, or run.metrics_port in the job file).",
        ) from error

    def told(progress: Progress) -> None:
        run.watch(progress)
        watch(progress)

    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
