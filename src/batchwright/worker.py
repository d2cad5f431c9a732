"""What runs on every machine: chunk -> requests -> engine -> outcomes -> committed part."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from batchwright.config.job import Job
from batchwright.core.errors import Stopped
from batchwright.core.media import MediaLimits, has_media
from batchwright.core.outcomes import Outcome
from batchwright.core.ports import Clock, EngineInfo, Tokenizer
from batchwright.core.readings import INFER, STOPPING, Reading
from batchwright.engines.feeder import Supervisor
from batchwright.engines.reading import AnswerReader
from batchwright.machine.hardware import gpu_sampler
from batchwright.machine.worker_reading import Surroundings
from batchwright.media.pool import MediaPool
from batchwright.rundir.chunk_queue import ChunkQueue
from batchwright.rundir.events import Events
from batchwright.rundir.heartbeat import Heartbeat
from batchwright.rundir.ledger import Ledger
from batchwright.rundir.meters import FeedMeter, Shortage
from batchwright.rundir.storage import Storage
from batchwright.rundir.telemetry import Tally, Telemetry
from batchwright.rundir.timings import Timings
from batchwright.working.commits import Commit, Commits
from batchwright.working.committer import ActiveChunk, Committer
from batchwright.working.conforming import Conformer
from batchwright.working.finishing import Finisher
from batchwright.working.starting import STARTED, start_engine

_log = logging.getLogger("batchwright.engine")
STEP_TIMEOUT_S = 0.1
MEDIA_STEP_TIMEOUT_S = 0.01

# Devices of engines whose work no card of this machine shows.
WITHOUT_GPU = ("cpu", "none")


class Worker:
    """Runs chunks on one engine until none is left.

    The main thread only feeds the engine and collects outcomes. Detokenising, building and
    writing parts happen in a thread of their own, while the next chunk is already running.
    """

    def __init__(
        self, storage: Storage, job: Job, name: str, clock: Clock, supervisor: Supervisor,
        tokenizer: Tokenizer,
        *,
        timings: Timings | None = None,
        reader: AnswerReader | None = None,
        media: MediaLimits | None = None,
        pilot_only: bool = False,
    ) -> None:  # fmt: skip
        self._storage = storage
        self._job = job
        self._name = name
        self._clock = clock
        self._supervisor = supervisor
        self._media = MediaPool(media or MediaLimits())
        self._ledger = Ledger(storage, name, clock, job.run.lease_s)
        self._events = Events(storage, name, clock)
        self._queue = ChunkQueue(storage, self._ledger, pilot_only=pilot_only)
        self._feeding: ActiveChunk | None = None
        self._next: Future[ActiveChunk] | None = None
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="read")
        self._owner: dict[int, tuple[ActiveChunk, int, float]] = {}
        self._active: dict[str, ActiveChunk] = {}
        self._engine: EngineInfo | None = None
        self._tally = Tally()
        self._meter = FeedMeter(supervisor.max_num_seqs)
        self._surroundings = Surroundings(storage, name, INFER, clock)
        # Read in the main thread, for the heartbeat's: the supervisor is not made for two.
        self._oldest: list[tuple[int, float]] = []
        self._restarts = 0
        self._work = 0  # tokens that the engine has computed
        self._telemetry = Telemetry(storage, name, self._reading)
        self._timings = timings
        self._committer = Committer(
            storage, name, clock, tokenizer, self._timings, job.task_settings(),
            repeat_once=job.run.repeat_once, reader=reader,
        )  # fmt: skip
        self._commits = Commits(self._committer, clock, self._meter)
        self._conformer = Conformer(
            Finisher(tokenizer, reader), job.sampling.schema_retries, job.sampling.invalid_output
        )
        self._answer_reader = reader

    def run(self, stop: threading.Event) -> None:
        """Work until every chunk has a receipt.

        Raises:
            Stopped: `stop` was set; chunks that were finished in the grace time are committed.
            EngineError, StorageError: the run cannot go on here.
        """
        with Heartbeat(self._ledger, self._state, self._job.run.lease_s), self._telemetry:
            if not self._is_work_coming(stop):
                return
            self._tally.phase = "starting the engine"
            if self._timings is not None:
                self._timings.engine_is_starting()
            if self._answer_reader is not None:
                self._answer_reader.start()  # while the engine starts
            began = self._clock.monotonic()
            self._engine = start_engine(self._supervisor, self._storage, self._events)
            seconds = round(self._clock.monotonic() - began, 1)
            if self._answer_reader is not None:
                self._answer_reader.wait()
            if self._engine.device not in WITHOUT_GPU:
                self._surroundings.watch_cards(gpu_sampler(self._job.engine.options))
            if self._timings is not None:
                self._timings.engine_is_up()
            self._events.write(STARTED, **self._engine.as_json(), seconds=seconds)
            self._tally.phase = "running"
            self._ledger.heartbeat(self._state())  # chunks are cut once an engine is up
            self._note_engine()
            self._telemetry.soon()
            try:
                self._loop(stop)
            finally:
                self._tally.phase = STOPPING
                for active in self._active.values():
                    if active.outcomes:  # what is finished is not lost, whatever ended the work
                        self._save(active, last=False)
                self._media.stop()
                self._supervisor.stop()
                self._reader.shutdown(wait=True, cancel_futures=True)
                self._commits.close()
                self._note(self._commits.rest())
                if self._answer_reader is not None:
                    self._answer_reader.stop()

    def _is_work_coming(self, stop: threading.Event) -> bool:
        """Whether to start the engine; what it has loaded in vain is gone if not."""
        coming = False
        try:
            coming = self._wait_for_work(stop)
        finally:
            if not coming:
                self._supervisor.stop()
        return coming

    def _wait_for_work(self, stop: threading.Event) -> bool:
        """Whether to start the engine: not for a run that has nothing (left) to do.

        It takes a minute to start, so the first row that will run is enough: chunks are cut
        meanwhile. Nothing is claimed yet: other workers would have to wait for our engine. What
        takes neither card nor memory of the model, it loads before that.
        """
        preloaded = False
        while not stop.is_set():
            known = self._queue.has_work(self._clock.monotonic())
            if known is not None:
                return known
            if not preloaded:
                self._supervisor.preload()
                preloaded = True
            stop.wait(self._storage.seldom(0.05))
        raise Stopped("stopped before the engine was started")

    def _loop(self, stop: threading.Event) -> None:
        deadline: float | None = None
        while True:
            if stop.is_set() and deadline is None:
                deadline = self._clock.monotonic() + self._job.run.grace_s
            stopping = deadline is not None
            self._feed(claim=not stopping)
            short_of = self._short_of() if not stopping else None
            self._meter.look(self._clock.monotonic(), short_of)
            if not self._owner and self._feeding is None and (stopping or self._next is None):
                if deadline is not None:
                    raise Stopped("stopped; every chunk that was begun is committed")
                if self._idle(stop):
                    return
                continue
            if deadline is not None and self._clock.monotonic() > deadline:
                raise Stopped("stopped; the rows that were not finished will be run again")
            outcomes = self._step()
            if self._timings is not None:
                held = self._supervisor.in_flight
                self._timings.note(self._supervisor.gauges(), held, outcomes)
            settled, again = self._conformer.judge(outcomes)
            if again:  # their rows are still in flight: no outcome of theirs has counted
                _log.debug("rows are asked again", extra={"figures": {"rows": len(again)}})
                self._supervisor.submit(again)
            for outcome in settled:
                self._take_in(outcome)
            self._note_engine()
            self._save_stalled()
            self._note(self._commits.finished())

    def _step(self) -> list[Outcome]:
        """What has come of rows, be it from the engine or from those that fetch their media."""
        failed = self._media.take_failed()
        if not self._media.rows:
            return failed + self._supervisor.step(STEP_TIMEOUT_S)
        if not self._supervisor.in_flight and not failed:
            self._media.wait(STEP_TIMEOUT_S)
            return self._media.take_failed()
        # Rows whose media come meanwhile must not wait for a whole step.
        return failed + self._supervisor.step(MEDIA_STEP_TIMEOUT_S)

    def _note_engine(self) -> None:
        self._oldest = self._supervisor.oldest()
        gauges = self._supervisor.gauges()
        self._work = gauges.prompt_tokens + gauges.output_tokens
        held = self._supervisor.in_flight
        self._meter.note(gauges, held, self._supervisor.cap)
        if self._supervisor.restarts != self._restarts:
            self._restarts = self._supervisor.restarts
            self._meter.forget()
            self._events.write("engine_restarted", reason=self._supervisor.last_death)

    def _idle(self, stop: threading.Event) -> bool:
        """Nothing is in the engine: True if the run is done, else wait a little."""
        self._note(self._commits.rest())
        if self._queue.finished():
            return True
        self._tally.phase = "waiting for rows"
        stop.wait(0.02)
        return False

    def _feed(self, *, claim: bool) -> None:
        """Fill the engine; the next chunk flows in while the last one drains.

        Rows with media take their turn when these have come; more of them are called up meanwhile.
        """
        room = self._supervisor.room()
        now = self._clock.monotonic()
        batch = self._media.take(room)
        while len(batch) < room or self._media.wants_more:
            if self._feeding is None and claim:
                self._feeding = self._next_chunk()
            if self._feeding is None:
                break
            request = next(self._feeding.requests, None)
            if request is None:
                self._feeding.fed = True
                self._feeding = None
                continue
            self._owner[request.row] = (self._feeding, request.prompt_tokens, now)
            if has_media(request.extras) or len(batch) >= room:
                self._media.submit(request, partial(self._feeding.find_input, request.row))
            else:
                batch.append(request)
        for request in batch:  # with their media: an answer may have to be asked for again
            self._conformer.watch(request)
        if batch:
            self._tally.phase = "running"
            self._supervisor.submit(batch)

    def _short_of(self) -> Shortage | None:
        """What keeps the engine from being full, just after it was fed."""
        supervisor = self._supervisor
        if supervisor.in_flight >= supervisor.cap or not supervisor.room():
            return None
        if self._media.rows:
            return "media"
        # At the end, when others run what is left, nothing is missing.
        return "rows" if self._next is not None or self._queue.more_to_come else None

    def _next_chunk(self) -> ActiveChunk | None:
        """The chunk that was read ahead; and the one after it starts to be read."""
        self._read_ahead()
        if self._next is None:
            return None
        active = self._next.result()
        self._next = None
        if self._timings is not None:
            self._timings.begin(active.chunk)
        self._active[active.chunk.name] = active
        if not active.unfinished:  # every row has a receipt by now: at most it is to be closed
            self._save(active, last=True)
        self._read_ahead()
        return active

    def _read_ahead(self) -> None:
        if self._next is None:
            held_rows = sum(active.unfinished for active in self._active.values())
            chunk = self._queue.take(self._clock.monotonic(), held_rows)
            if chunk is not None:
                self._next = self._reader.submit(self._committer.load, chunk)

    def _take_in(self, outcome: Outcome) -> None:
        active, prompt_tokens, begun_at = self._owner.pop(outcome.row)
        now = self._clock.monotonic()
        active.times_s[outcome.row] = now - begun_at
        for one in active.take_in(outcome, prompt_tokens, now):
            self._tally.add(one, prompt_tokens)
        if not active.unfinished:
            self._save(active, last=True)

    def _save_stalled(self) -> None:
        """Commit what is finished of chunks that wait for a few slow rows."""
        now = self._clock.monotonic()
        for active in self._active.values():
            if active.is_stalled(now):
                self._save(active, last=False)

    def _save(self, active: ActiveChunk, *, last: bool) -> None:
        outcomes = active.hand_over(self._clock.monotonic())
        if last:
            del self._active[active.chunk.name]
        self._commits.begin(active, outcomes, last=last)

    def _note(self, commits: Iterable[Commit]) -> None:
        for commit in commits:
            self._tally.committed(commit.rows)
            if commit.last:
                self._queue.mark_done(commit.chunk)
            if not commit.mine:
                self._events.write("chunk_was_done_elsewhere", chunk=commit.chunk.name)

    def _reading(self) -> Reading:
        """A line of telemetry; made in its thread, of what the loop has left."""
        return self._surroundings.reading(
            phase=self._tally.phase,
            **self._tally.totals(),
            restarts=self._restarts,
            kv_peak=self._meter.take_kv_peak(),
            engine=self._meter.gauges,
            feed=self._meter.reading(self._committer.meter),
        )

    def _state(self) -> dict[str, Any]:
        """What the heartbeat tells the world."""
        oldest = [[row, round(age_s, 1)] for row, age_s in self._oldest]
        engine = self._engine and self._engine.as_json()
        state = {"role": "infer", **self._tally.as_json(), "work": self._work}
        state |= {"in_flight": len(self._owner), "oldest": oldest, "engine": engine}
        return {**state, "reading": self._telemetry.as_json()}
