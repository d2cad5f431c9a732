"""Engines in steady work: what they make per second with so many rows at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from batchwright.core.errors import EngineError, JobError, Stopped
from batchwright.core.outcomes import Outcome
from batchwright.core.ports import EngineInfo, EngineSettings
from batchwright.core.records import Request
from batchwright.core.sweep import Reading
from batchwright.engines.feeder import Supervisor
from batchwright.engines.process import EngineProcess

STEP_TIMEOUT_S = 0.05
# After so many steps it is known how many rows really ran.
STEPS_TO_ADAPT = 50
# So many rows without an answer, and none with one, say that the engine cannot run these rows.
FAILURES_TO_END = 20


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to measure: so many seconds, and so many times the rows that run at a time."""

    min_s: float = 2.0
    turns: float = 2.0


class _Mark(NamedTuple):
    """Totals at a moment."""

    at: float
    rows: int
    prompt_tokens: int
    output_tokens: int


class _Lane:
    """One engine, and how many rows it is given so that the wanted number runs.

    A row that ended is replaced a step or two later, when the news has come through the pipe. The
    engine's own limit lies higher here than the rows that are measured, so it hides nothing: some
    spare rows make up for the gap.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self._spare = 0
        self._steps = self._output_tokens = 0

    def turn(self, rows: int, requests: Iterator[Request], timeout_s: float) -> list[Outcome]:
        room = rows + self._spare - self.supervisor.in_flight
        if room > 0:
            self.supervisor.submit(list(islice(requests, room)))
        outcomes = self.supervisor.step(timeout_s)
        self._adapt(rows)
        return outcomes

    def _adapt(self, rows: int) -> None:
        """Each row that runs makes one token in a step: fewer tokens are rows that were missing."""
        gauges = self.supervisor.gauges()
        steps = gauges.steps - self._steps
        if steps < STEPS_TO_ADAPT:
            return
        ran = (gauges.output_tokens - self._output_tokens) / steps
        most = max(1, rows // 4)
        self._spare = round(min(most, max(0.0, self._spare + (rows - ran) / 2)))
        self._steps, self._output_tokens = gauges.steps, gauges.output_tokens


class Bench:
    """Keeps engines busy with an endless stream of rows, and measures.

    Args:
        supervisors: of engines with the same settings, not started; they share the stream.
        requests: without end.
        monotonic: seconds that never go back.
    """

    def __init__(
        self,
        supervisors: Sequence[Supervisor],
        requests: Iterator[Request],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lanes = [_Lane(supervisor) for supervisor in supervisors]
        self._requests = requests
        self._monotonic = monotonic
        self._failed = 0
        self.finished = 0
        self.cached_tokens = 0

    def start(self) -> EngineInfo:
        """Start the engines one after the other: each looks at the memory that is left."""
        infos = [lane.supervisor.start() for lane in self._lanes]
        return infos[0]

    def measure(
        self, rows: int, pace: Pace, deadline: float, stop: threading.Event
    ) -> Reading | None:
        """Run so many rows at a time on each engine, and measure once a whole turn of them ended.

        Call it with more rows than the time before: the engines need not run empty in between.

        Args:
            rows: per engine, not more than its own `max_num_seqs`.
            pace: how long to measure.
            deadline: moment of the clock at which to end with what there is.
            stop: ends it.

        Returns:
            None if not even one turn was measured by the deadline.

        Raises:
            Stopped: `stop` was set.
            EngineError: an engine died, or answers no row.
        """
        turn = rows * len(self._lanes)
        preempted = self._preemptions()
        ramp_ends = self.finished + turn
        while self.finished < ramp_ends:
            if self._monotonic() > deadline:
                return None
            self._turn(rows, stop)
        first = last = self._mark()
        kv_use = 0.0
        while not _is_enough(first, last, pace, turn) and last.at <= deadline:
            self._turn(rows, stop)
            last = self._mark()
            kv_use = max(kv_use, *(lane.supervisor.gauges().kv_use for lane in self._lanes))
        seconds = last.at - first.at
        if last.rows - first.rows < turn or seconds <= 0:
            return None
        return Reading(
            seconds,
            (last.prompt_tokens - first.prompt_tokens) / seconds,
            (last.output_tokens - first.output_tokens) / seconds,
            kv_use,
            self._preemptions() - preempted,
        )

    def stop(self) -> None:
        """Stop the engines; rows in flight are forgotten."""
        for lane in self._lanes:
            lane.supervisor.stop()

    def _turn(self, rows: int, stop: threading.Event) -> None:
        if stop.is_set():
            raise Stopped("stopped in the sweep; the pilot's answers are kept")
        for lane in self._lanes:
            timeout_s = STEP_TIMEOUT_S / len(self._lanes)
            for outcome in lane.turn(rows, self._requests, timeout_s):
                if outcome.error_code is None:
                    self.finished += 1
                    self.cached_tokens += outcome.cached_tokens
                else:
                    self._note_failure(outcome)

    def _note_failure(self, outcome: Outcome) -> None:
        self._failed += 1
        if self._failed >= FAILURES_TO_END and not self.finished:
            raise EngineError(f"the engine answers no row of the pilot: {outcome.error}")

    def _mark(self) -> _Mark:
        gauges = [lane.supervisor.gauges() for lane in self._lanes]
        return _Mark(
            self._monotonic(),
            self.finished,
            sum(one.prompt_tokens for one in gauges),
            sum(one.output_tokens for one in gauges),
        )

    def _preemptions(self) -> int:
        return sum(lane.supervisor.gauges().preemptions for lane in self._lanes)


def _is_enough(first: _Mark, last: _Mark, pace: Pace, turn: int) -> bool:
    long_enough = last.at - first.at >= pace.min_s
    return long_enough and last.rows - first.rows >= pace.turns * turn


class Started(NamedTuple):
    """Engines that are up, what they say of themselves, and how long each took to start."""

    bench: Bench
    info: EngineInfo
    start_up_s: float


@dataclass(frozen=True, slots=True)
class BenchMaker:
    """Starts engines that differ in some of their settings only.

    Attributes:
        target: `module:Class` of the engine.
        settings: what all of them have in common.
        log_dir: what the engines print goes to files here.
        start_timeout_s: see `EngineProcess`.
        hang_timeout_s: see `EngineProcess`.
        row_timeout_s: see `Supervisor`.
    """

    target: str
    settings: EngineSettings
    log_dir: Path
    start_timeout_s: float
    hang_timeout_s: float
    row_timeout_s: float

    def start(
        self, rows: int, options: dict[str, Any], count: int, requests: Iterator[Request]
    ) -> Started:
        """Start `count` engines for so many rows each.

        Raises:
            EngineError: one of them does not start.
            JobError: the options cannot work.
        """
        settings = replace(self.settings, max_num_seqs=rows, options=options)
        bench = Bench([self._supervisor(settings, at) for at in range(count)], requests)
        began = time.monotonic()
        try:
            info = bench.start()
        except (EngineError, JobError):
            bench.stop()  # those that did start hold the card's memory
            raise
        return Started(bench, info, (time.monotonic() - began) / count)

    def _supervisor(self, settings: EngineSettings, number: int) -> Supervisor:
        def make_engine() -> EngineProcess:
            return EngineProcess(
                self.target,
                log_path=self.log_dir / f"sweep-{number}.engine.log",
                start_timeout_s=self.start_timeout_s,
                hang_timeout_s=self.hang_timeout_s,
            )

        # An engine that dies says all there is to know of these settings: no second try.
        return Supervisor(make_engine, settings, row_timeout_s=self.row_timeout_s, max_restarts=0)
