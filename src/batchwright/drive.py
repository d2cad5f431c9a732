"""Run a job's workers on this machine and watch the run directory until every row has a fate."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from batchwright.config.job import Job
from batchwright.core import errors
from batchwright.core.errors import BatchwrightError, EngineError, TooManyFailures
from batchwright.core.records import Chunk
from batchwright.executors.local import (
    MAX_RESTARTS,
    Ended,
    LocalExecutor,
    share_gpus,
    visible_gpus,
)
from batchwright.rundir import layout
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.events import Events
from batchwright.rundir.heartbeat import reported_error
from batchwright.rundir.ledger import new_worker_name, read_heartbeat
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.state import Counts, RunState
from batchwright.rundir.storage import Storage

LOOK_EVERY_S = 0.25

# The rate is taken over this long, so that it follows the run but does not jump.
RATE_WINDOW_S = 30.0

# Below this many rows, a share of failures says nothing about the job.
ROWS_TO_JUDGE = 100

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
    """

    run_dir: Path
    counts: Counts
    rows_expected: int
    rows_done: int
    rows_per_s: float
    tokens_per_s: float
    eta_s: float | None
    phase: str


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


def _pilot_is_done(state: RunState) -> bool:
    done = bool(state.pilot) and all(chunk.name in state.done for chunk in state.pilot)
    return done or state.counts().complete


EVERY_ROW = Goal("infer", lambda state: state.counts().complete, lambda state: state.chunks)
THE_PILOT = Goal("pilot", _pilot_is_done, lambda state: state.pilot)


def drive(
    storage: Storage,
    manifest: Manifest,
    job: Job,
    watch: Callable[[Progress], None],
    stop: threading.Event,
    goal: Goal = EVERY_ROW,
) -> None:
    """Start workers, watch, and return when the goal is reached: every row has its fate.

    Raises:
        Stopped: `stop` was set.
        TooManyFailures: see `run.stop_at_failed`.
        BatchwrightError: what a worker could not go on with.
    """
    driver = _Driver(storage, manifest, job, goal)
    driver.start()
    try:
        while not driver.look():
            watch(driver.progress())
            if stop.wait(LOOK_EVERY_S):
                raise errors.Stopped(
                    "before the end", "Run the same command again: it goes on where it stopped."
                )
        watch(driver.progress())
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
        self._state = RunState(storage)
        self._clock = SystemClock()
        self._events = Events(storage, new_worker_name("driver"), self._clock)
        log_dir = storage.local_path(layout.LOGS) or Path("logs")
        self._executor = LocalExecutor(storage.root, log_dir)
        self._names: list[str] = []
        self._deaths = 0
        self._done_at_death = -1
        self._rate = _Rate()

    def start(self) -> None:
        self._look_at_files()
        counts = self._state.counts()
        if self._goal.reached(self._state):
            return
        self._events.write("run_started", chunks_done=counts.chunks_done)
        if not counts.ordered:
            for _ in range(self._job.run.prepare_processes):
                self._start("prepare")
        options = self._job.engine.options
        per_replica = int(options.get("tensor_parallel_size", 1)) * int(
            options.get("pipeline_parallel_size", 1)
        )
        for gpus in share_gpus(visible_gpus(), self._job.run.replicas, per_replica):
            self._start(self._goal.role, gpus)

    def look(self) -> bool:
        """Read what is new; True when every row has its fate."""
        self._look_at_files()
        for ended in self._executor.poll():
            self._judge_end(ended)
        self._judge_rows(self._state.counts())
        return self._goal.reached(self._state)

    def progress(self) -> Progress:
        counts = self._state.counts()
        workers = [read_heartbeat(self._storage, name) for name in self._names]
        infer = [worker for worker in workers if worker.get("role") == "infer"]
        uncommitted = sum(max(0, worker.get("uncommitted", 0)) for worker in infer)
        expected = self._rows_expected(counts)
        done = min(counts.settled + uncommitted, max(expected, counts.settled))
        tokens = sum(worker.get("completion_tokens", 0) for worker in infer)
        rows_per_s, tokens_per_s = self._rate.add(self._clock.monotonic(), done, tokens)
        left = max(0, expected - done)
        return Progress(
            run_dir=self._storage.root,
            counts=counts,
            rows_expected=expected,
            rows_done=done,
            rows_per_s=rows_per_s,
            tokens_per_s=tokens_per_s,
            eta_s=left / rows_per_s if rows_per_s else None,
            phase=_phase(infer, counts),
        )

    def leave(self) -> None:
        """Let finished workers go by themselves; those that have more to do are stopped later."""
        if not self._state.counts().complete:
            return
        deadline = time.monotonic() + LEAVE_S
        while self._executor.running and time.monotonic() < deadline:
            for ended in self._executor.poll():
                self._judge_end(ended)
            time.sleep(0.02)
        self._events.write("run_finished")

    def close(self) -> None:
        self._executor.cancel(self._job.run.grace_s + LEAVE_S)

    def _start(self, role: str, gpus: str | None = None) -> None:
        name = new_worker_name(role)
        self._names.append(name)
        self._executor.start(role, name, gpus)

    def _look_at_files(self) -> None:
        self._state.refresh_order()
        self._state.refresh_receipts()

    def _judge_end(self, ended: Ended) -> None:
        """Pass on a worker's error; start a worker again that died without a word."""
        if ended.exit_code == 0:
            return
        error = reported_error(read_heartbeat(self._storage, ended.name))
        if error is not None:
            raise error
        self._events.write("worker_died", name=ended.name, exit_code=ended.exit_code)
        if ended.exit_code == 1:  # a traceback: it would only happen again
            log = self._log(ended)
            raise BatchwrightError(
                f"a worker failed: {_last_line(log)}",
                f"This is a fault in batchwright; please report it with {log}.",
            )
        done = self._state.counts().chunks_done
        if done > self._done_at_death:
            self._deaths = 0
        self._done_at_death = done
        self._deaths += 1
        if self._deaths > MAX_RESTARTS:
            log = self._log(ended)
            raise EngineError(
                f"workers keep dying (the last with exit code {ended.exit_code})",
                f"Look at the end of {log}; exit code -9 mostly means out of memory.",
            )
        self._start(ended.role, ended.gpus)

    def _log(self, ended: Ended) -> Path:
        name = f"{layout.LOGS}/{ended.name}.log"
        return self._storage.local_path(name) or Path(name)

    def _judge_rows(self, counts: Counts) -> None:
        limit = self._job.run.stop_at_failed
        # A retry begins with failed rows only: its first pass has been judged.
        if counts.complete or self._state.generations > 1:
            return
        verdict = what_is_wrong(counts, limit)
        if verdict is not None:
            raise TooManyFailures(
                f"{verdict}: something is wrong with the whole job",
                self._commonest_reasons(counts)
                + f"See {self._storage.root / layout.REJECTED}; run.stop_at_failed is {limit}.",
            )

    def _commonest_reasons(self, counts: Counts) -> str:
        """The commonest codes with an example each, a line per code."""
        reasons = {code: (number, "") for code, number in counts.failures.items()}
        names = self._storage.names(layout.REJECTED)[:1]
        for name in names:
            for line in self._storage.read(f"{layout.REJECTED}/{name}").splitlines():
                row = orjson.loads(line)
                number, example = reasons.get(row["code"], (0, ""))
                example = example or f": {row['file']}:{row['line']}: {row['message']}"
                reasons[row["code"]] = (number + 1, example)
        ranked = sorted(reasons.items(), key=lambda item: -item[1][0])[:3]
        return "".join(f"{number:,} x {code}{example}\n  " for code, (number, example) in ranked)

    def _rows_expected(self, counts: Counts) -> int:
        if self._goal is THE_PILOT:
            return sum(chunk.num_rows for chunk in self._state.pilot) + counts.rejected
        if counts.ordered:
            return counts.rows
        ordered = {part.split for batch in self._state.batches for part in batch.parts}
        if not ordered:
            return 0
        estimate = counts.rows * len(self._manifest.splits) // len(ordered)
        limit = self._job.input.limit
        return estimate if limit is None else min(estimate, limit)


class _Rate:
    """Rows and tokens per second over the last while."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, int, int]] = deque()

    def add(self, now: float, rows: int, tokens: int) -> tuple[float, float]:
        self._readings.append((now, rows, tokens))
        while now - self._readings[0][0] > RATE_WINDOW_S and len(self._readings) > 2:
            self._readings.popleft()
        start, first_rows, first_tokens = self._readings[0]
        seconds = now - start
        if seconds <= 0:
            return 0.0, 0.0
        return max(0, rows - first_rows) / seconds, max(0, tokens - first_tokens) / seconds


def what_is_wrong(counts: Counts, limit: float) -> str | None:
    """Too many rows without an answer, in words; None if there are not.

    Rejected rows are held against the rows that were read, failed ones against those that came
    out of the engine: reading is far ahead of the engine, so a common sum would say nothing.
    """
    if counts.rows >= ROWS_TO_JUDGE and counts.rejected > limit * counts.rows:
        return f"{counts.rejected:,} of the first {counts.rows:,} rows are rejected"
    finished = counts.ok + counts.failed
    if finished >= ROWS_TO_JUDGE and counts.failed > limit * finished:
        return f"{counts.failed:,} of the first {finished:,} rows failed"
    return None


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
    return lines[-1] if lines else "it left no word"


def _phase(infer: list[dict[str, Any]], counts: Counts) -> str:
    phases = [worker["phase"] for worker in infer if not worker.get("ended") and "phase" in worker]
    for phase in ("running", "starting the engine", "waiting for rows"):
        if phase in phases:
            return phase
    return "finishing" if counts.complete else "starting workers"
