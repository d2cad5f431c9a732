"""Run a job's workers on this machine and watch the run directory until every row has a fate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from batchwright.config.job import Job
from batchwright.core import errors
from batchwright.core.errors import BatchwrightError, EngineError
from batchwright.core.records import Chunk
from batchwright.equip.equipment import gpus_per_replica, num_replicas
from batchwright.executors.growth import Growth
from batchwright.executors.local import Ended
from batchwright.executors.stall import StallWatch
from batchwright.rundir import layout
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.events import Events
from batchwright.rundir.heartbeat import declare_dead, reported_error
from batchwright.rundir.ledger import new_worker_name, read_heartbeat
from batchwright.rundir.locations import Location
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.state import Counts, RunState
from batchwright.rundir.storage import Storage
from batchwright.running.progress import Rate, expected_rows, rows_done, run_phase
from batchwright.running.staffing import (
    Executor,
    make_executor,
    most_engines_per_card,
    stall_limits,
)
from batchwright.running.verdict import judge_rows

LOOK_EVERY_S = 0.25

# Finished workers need a moment to leave; nobody waits for them longer than this.
LEAVE_S = 10.0


@dataclass(frozen=True, slots=True)
class Progress:
    """A look at a run.

    Attributes:
        run_dir: where it lives.
        counts: what is committed.
        rows_expected: rows of the whole input, an estimate until `counts.ordered`.
        rows_done: committed, and finished but not committed yet.
        rows_per_s: over the last half minute; 0 before the first row.
        tokens_per_s: output tokens over the same time.
        eta_s: seconds to the end at this rate; None if it cannot be said.
        phase: what is going on, in a few words.
        notes: what is new to say, a line each.
    """

    run_dir: Location
    counts: Counts
    rows_expected: int
    rows_done: int
    rows_per_s: float
    tokens_per_s: float
    eta_s: float | None
    phase: str
    notes: tuple[str, ...] = ()


Watch = Callable[[Progress], None]
Judge = Callable[[RunState, Progress], Sequence[str]]


def _nothing_to_say(_state: RunState, _progress: Progress) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class Goal:
    """What to drive a run to.

    Attributes:
        role: of the workers with an engine.
        reached: whether enough is done.
        chunks: those that count for it.
    """

    role: str
    reached: Callable[[RunState], bool]
    chunks: Callable[[RunState], list[Chunk]]


def pilot_is_done(state: RunState) -> bool:
    """Whether every row of the pilot has its fate, or every row of the run."""
    done = bool(state.pilot) and all(chunk.name in state.done for chunk in state.pilot)
    return done or state.counts().complete


EVERY_ROW = Goal("infer", lambda state: state.counts().complete, lambda state: state.chunks)
THE_PILOT = Goal("pilot", pilot_is_done, lambda state: state.pilot)


def drive(
    storage: Storage,
    manifest: Manifest,
    job: Job,
    watch: Watch,
    stop: threading.Event,
    goal: Goal = EVERY_ROW,
    judge: Judge = _nothing_to_say,
) -> None:
    """Start workers, watch, and return when the goal is reached: every row has its fate.

    Args:
        storage: of the run.
        manifest: of the run.
        job: the resolved job.
        watch: told how far the run is.
        stop: set it to end early.
        goal: what to drive the run to.
        judge: looks at the run too, and has something to say, or ends it with an error.

    Raises:
        Stopped: `stop` was set.
        TooManyFailures: see `run.stop_at_failed`.
        BatchwrightError: what a worker could not go on with.
    """
    driver = _Driver(storage, manifest, job, goal)
    try:
        driver.start()
        while not driver.look():
            progress = driver.progress()
            watch(replace(progress, notes=tuple(judge(driver.state, progress))))
            if stop.wait(storage.seldom(LOOK_EVERY_S)):
                raise errors.Stopped(
                    "before the end", "Run the same command again: it goes on where it stopped."
                )
        progress = driver.progress()
        watch(replace(progress, notes=tuple(judge(driver.state, progress))))
        driver.leave()
    finally:
        driver.close()


class _Driver:
    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        job: Job,
        goal: Goal = EVERY_ROW,
    ) -> None:
        self._goal = goal
        self._storage = storage
        self._manifest = manifest
        self._job = job
        self.state = RunState(storage)
        self._clock = SystemClock()
        self._events = Events(storage, new_worker_name("driver"), self._clock)
        self._logs = storage.local_folder(layout.LOGS)
        self._executor: Executor = make_executor(storage, manifest, job)
        self._stalls = StallWatch(stall_limits(job))
        self._names: list[str] = []
        self._cards: Sequence[str | None] = [None]
        self._layers: list[list[str]] = []
        self._dropped: set[str] = set()
        self._killed: set[str] = set()
        self._growth = Growth(1)
        self._deaths = 0
        self._done_at_death = -1
        self._rate = Rate()

    def start(self) -> None:
        self._look_at_files()
        counts = self.state.counts()
        if self._goal.reached(self.state):
            return
        self._events.write("run_started", chunks_done=counts.chunks_done)
        replicas = num_replicas(self._manifest, self._job)
        each = gpus_per_replica(self._manifest, self._job)
        self._cards = self._executor.places(replicas, each)
        if not counts.ordered:
            for _ in range(self._job.run.prepare_processes):
                self._start("prepare")
        engines = most_engines_per_card(self._manifest, self._job)
        # Asked for, they all start now; proposed by the plan, each has to prove itself.
        proved = self._job.run.engines_per_gpu or 1
        self._growth = Growth(1 if self._goal is THE_PILOT else engines - proved + 1)
        for _ in range(proved):
            self._add_engines()

    def _add_engines(self) -> None:
        """One more engine on every card."""
        self._layers.append([self._start(self._goal.role, gpus) for gpus in self._cards])

    def _drop_engines(self) -> None:
        """Take the newest engine of every card away; what it has not finished, others run."""
        names = self._layers.pop()
        self._dropped.update(names)
        for name in names:
            self._executor.stop(name)

    def _grow(self, infer: list[dict[str, Any]], eta_s: float | None) -> None:
        up = sum(worker.get("phase") == "running" for worker in infer if not worker.get("ended"))
        work = sum(worker.get("work", 0) for worker in infer)
        step = self._growth.look(self._clock.monotonic(), up // len(self._cards), work, eta_s)
        if step is not None:
            self._events.write(f"engines_{step}", engines_per_gpu=len(self._layers))
            (self._add_engines if step == "add" else self._drop_engines)()

    def look(self) -> bool:
        """Read what is new; True when every row has its fate."""
        self._look_at_files()
        for ended in self._executor.poll():
            self._judge_end(ended)
        self._judge_rows(self.state.counts())
        return self._goal.reached(self.state)

    def progress(self) -> Progress:
        counts = self.state.counts()
        workers = {name: read_heartbeat(self._storage, name) for name in self._names}
        self._end_stalled(workers)
        infer = [worker for worker in workers.values() if worker.get("role") == "infer"]
        expected = self._rows_expected(counts)
        done = rows_done(counts, infer, expected)
        tokens = sum(worker.get("completion_tokens", 0) for worker in infer)
        rows_per_s, tokens_per_s = self._rate.add(self._clock.monotonic(), done, tokens)
        left = max(0, expected - done)
        phase = run_phase(infer, counts, self._executor.starting)
        # Before an engine runs only rejected rows are done, and those say nothing of the others.
        eta_s = left / rows_per_s if rows_per_s and phase == "running" else None
        self._grow(infer, eta_s)
        return Progress(
            run_dir=self._storage.place,
            counts=counts,
            rows_expected=expected,
            rows_done=done,
            rows_per_s=rows_per_s,
            tokens_per_s=tokens_per_s,
            eta_s=eta_s,
            phase=phase,
        )

    def leave(self) -> None:
        """Let finished workers go by themselves; those that have more to do are stopped later."""
        if not self.state.counts().complete:
            return
        deadline = time.monotonic() + LEAVE_S
        while self._executor.running and time.monotonic() < deadline:
            for ended in self._executor.poll():
                self._judge_end(ended)
            time.sleep(0.02)
        self._events.write("run_finished")

    def close(self) -> None:
        self._executor.cancel(self._job.run.grace_s + LEAVE_S)
        self._storage.flush_logs()

    def _start(self, role: str, gpus: str | None = None) -> str:
        name = new_worker_name(role)
        self._names.append(name)
        self._executor.start(role, name, gpus)
        return name

    def _end_stalled(self, workers: Mapping[str, Mapping[str, Any]]) -> None:
        stalled = self._stalls.look(self._clock.monotonic(), workers)
        for name in stalled.keys() - self._killed:
            self._killed.add(name)
            self._events.write("worker_stalled", name=name, reason=stalled[name])
            self._executor.kill(name)

    def _look_at_files(self) -> None:
        self.state.refresh()

    def _judge_end(self, ended: Ended) -> None:
        """Pass on a worker's error; start a worker again that died without a word."""
        if ended.has_left:
            self._events.write("worker_left", name=ended.name)
            self._start_again(ended)
            return
        if ended.exit_code == 0 or ended.name in self._dropped:
            return
        error = ended.error or reported_error(read_heartbeat(self._storage, ended.name))
        if self._growth.on_trial and ended.name in self._layers[-1]:
            reason = f"exit code {ended.exit_code}" if error is None else error.message
            self._events.write("engines_given_up", reason=reason)
            self._drop_engines()
            self._growth.give_up()
            return
        if error is not None:
            raise error
        self._events.write("worker_died", name=ended.name, exit_code=ended.exit_code)
        declare_dead(self._storage, ended.name)
        if ended.exit_code == 1:  # a traceback: it would only happen again
            log = self._log(ended)
            raise BatchwrightError(
                f"a worker failed: {_last_line(log)}",
                f"This is a fault in batchwright; please report it with {log}.",
            )
        done = self.state.counts().chunks_done
        if done > self._done_at_death:
            self._deaths = 0
        self._done_at_death = done
        self._deaths += 1
        if self._deaths > self._executor.max_restarts:
            log = self._log(ended)
            raise EngineError(
                f"workers keep dying (the last with exit code {ended.exit_code})",
                f"Look at the end of {log}; exit code -9 mostly means out of memory.",
            )
        self._start_again(ended)

    def _start_again(self, ended: Ended) -> None:
        if ended.role == "prepare" and self.state.counts().ordered:
            return  # on a cluster it might wait for a place for nothing
        self._start(ended.role, ended.gpus)

    def _log(self, ended: Ended) -> Path:
        return self._logs / f"{ended.name}.log"

    def _judge_rows(self, counts: Counts) -> None:
        # A retry begins with failed rows only: its first pass has been judged.
        if not (counts.complete or self.state.generations > 1):
            judge_rows(counts, self._job.run.stop_at_failed, self._storage)

    def _rows_expected(self, counts: Counts) -> int:
        if self._goal is THE_PILOT:
            return sum(chunk.num_rows for chunk in self.state.pilot) + counts.rejected
        return expected_rows(self.state, counts, self._manifest, self._job)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
    return lines[-1] if lines else "it left no word"
