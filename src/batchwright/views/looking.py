"""Looks at a run from outside: how far it is, and what each of its workers does just now."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchwright.config.job import Job
from batchwright.core.readings import Reading
from batchwright.core.records import Receipt
from batchwright.core.stores import LoadCounts
from batchwright.results.following import load_counts
from batchwright.rundir import layout
from batchwright.rundir.ledger import Roster
from batchwright.rundir.locations import Location
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.presence import Attendance, Presence
from batchwright.rundir.readings import newest_readings, reading_from
from batchwright.rundir.state import Counts, RunState, read_state
from batchwright.rundir.storage import Storage
from batchwright.rundir.waste import with_counted
from batchwright.running.progress import (
    RATE_WINDOW_S,
    Rate,
    expected_rows,
    rows_done,
    run_phase,
    with_engines,
)
from batchwright.views.report_rows import examples_of

# A reading has 1 to 2 KB, and there is one every two seconds.
READINGS_BYTES = 1 << 16

FAILURES_KEPT = 8

# Parts whose failed rows are read at one look: each is a file to open.
PARTS_AT_ONCE = 3


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands, without a second look at it.

    Attributes:
        counts: what is committed.
        workers: the last sign of life of each, with its `name`, its `presence`, and what of its
            work counts.
        loads: how far its loads into databases are.
        is_finished: whether the results are there, and are those of these counts.
    """

    counts: Counts
    workers: list[dict[str, Any]]
    loads: tuple[LoadCounts, ...]
    is_finished: bool

    @property
    def is_running(self) -> bool:
        """Whether anybody works on it."""
        return any(one["presence"] == Presence.RUNNING for one in self.workers)


def read_standing(storage: Storage, job: Job) -> Standing:
    """Where a run stands now."""
    is_finished = storage.read_if_there(layout.SUCCESS) is not None
    attendance = Attendance(storage, job.run.lease_s)
    state = read_state(storage)
    workers = with_counted(Roster(storage).read(), state.receipts.values())
    return Standing(
        counts=state.counts(),
        workers=[
            {"name": name, **one, "presence": attendance.of(name, one)}
            for name, one in workers.items()
        ],
        loads=load_counts(storage),
        is_finished=is_finished,
    )


@dataclass(frozen=True, slots=True)
class WorkerLook:
    """A worker at this moment.

    Attributes:
        name: in the run directory.
        number: by its start, as in the report; 0 for one without an engine.
        host: its machine.
        role: `infer` or `prepare`.
        phase: what it does, or that it is `gone` or `silent`.
        age_s: since its last sign of life.
        is_silent: whether it is not there any more: see `rundir.presence`.
        rows_per_s: over the last half minute.
        tokens_per_s: output tokens, over the same time.
        starved_share: of the same time, in which no prepared row was at hand; None if not known.
        reading: its newest; None if it has made none.
    """

    name: str
    number: int
    host: str
    role: str
    phase: str
    age_s: float
    is_silent: bool
    rows_per_s: float
    tokens_per_s: float
    starved_share: float | None
    reading: Reading | None


@dataclass(frozen=True, slots=True)
class FailureLook:
    """A row that has failed: its number, code and message."""

    row: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Look:
    """A run at this moment.

    Attributes:
        run_dir: where it is.
        counts: what is committed.
        rows_expected: of the whole input; an estimate until all are numbered.
        rows_done: committed, or finished and not committed yet.
        rows_per_s: of all workers.
        tokens_per_s: output tokens of all workers.
        eta_s: to the end at this rate; None if it cannot be said.
        phase: what is going on.
        is_finished: whether the results are there.
        workers: those that have not ended, by name.
        failures: the newest first.
    """

    run_dir: Location
    counts: Counts
    rows_expected: int
    rows_done: int
    rows_per_s: float
    tokens_per_s: float
    eta_s: float | None
    phase: str
    is_finished: bool
    workers: tuple[WorkerLook, ...]
    failures: tuple[FailureLook, ...]

    @property
    def is_running(self) -> bool:
        """Whether anybody works on it."""
        return any(not one.is_silent for one in self.workers)


class Onlooker:
    """Looks at a run again and again, and reads only what is new."""

    def __init__(self, storage: Storage, manifest: Manifest, job: Job) -> None:
        self._storage = storage
        self._manifest = manifest
        self._job = job
        self._state = RunState(storage)
        self._roster = Roster(storage)
        self._attendance = Attendance(storage, job.run.lease_s)
        self._paces: dict[str, _Pace] = {}
        self._failures: dict[int, FailureLook] = {}  # oldest first
        self._known: set[str] = set()

    def look(self) -> Look:
        """The run now."""
        # Asked first: who sees the end has then seen all that came before it.
        is_finished = self._storage.read_if_there(layout.SUCCESS) is not None
        self._state.refresh()
        self._note_failures()
        counts = self._state.counts()
        found = {name: one for name, one in self._roster.read().items() if one.get("at")}
        living = {name: one for name, one in found.items() if not one.get("ended")}
        numbers = with_engines(found)
        preparers = [name for name in sorted(living) if living[name].get("role") == "prepare"]
        workers = [
            self._worker(name, numbers.get(name, 0), living[name])
            for name in [*numbers, *preparers]
            if name in living
        ]
        heard = [living[one.name] for one in workers if one.number and not one.is_silent]
        expected = expected_rows(self._state, counts, self._manifest, self._job)
        done = rows_done(counts, heard, expected)
        rate = sum(one.rows_per_s for one in workers if not one.is_silent)
        phase = "finished" if is_finished else run_phase(heard, counts, _waiting(workers))
        is_steady = rate > 0 and phase == "running"
        return Look(
            run_dir=self._storage.place,
            counts=counts,
            rows_expected=expected,
            rows_done=done,
            rows_per_s=rate,
            tokens_per_s=sum(one.tokens_per_s for one in workers if not one.is_silent),
            eta_s=max(0, expected - done) / rate if is_steady else None,
            phase=phase,
            is_finished=is_finished,
            workers=tuple(workers),
            # Of those that a retry has mended by now nobody need be told.
            failures=tuple(self._failures.values())[::-1] if counts.failed else (),
        )

    def _worker(self, name: str, number: int, heartbeat: Mapping[str, Any]) -> WorkerLook:
        if name not in self._paces:
            self._paces[name] = _Pace()
            for one in newest_readings(self._storage, name, READINGS_BYTES):
                self._paces[name].add_reading(one)
        pace = self._paces[name]
        pace.add_heartbeat(heartbeat)
        age_s = max(0.0, time.time() - float(heartbeat["at"]))
        presence = self._attendance.of(name, heartbeat)
        is_there = presence is Presence.RUNNING
        return WorkerLook(
            name=name,
            number=number,
            host=str(heartbeat.get("host", "")),
            role=str(heartbeat["role"]),
            phase=str(heartbeat.get("phase", "preparing") if is_there else presence),
            age_s=age_s,
            is_silent=not is_there,
            rows_per_s=pace.rows_per_s,
            tokens_per_s=pace.tokens_per_s,
            starved_share=pace.starved_share(),
            reading=pace.newest,
        )

    def _note_failures(self) -> None:
        """Read the failed rows of the newest parts that have some."""
        fresh = {
            name: one
            for name, one in self._state.receipts.items()
            if name not in self._known and one.failures
        }
        self._known.update(self._state.receipts)
        newest = sorted(fresh.values(), key=_finished_at)[-PARTS_AT_ONCE:]
        for receipt in newest:
            for code, one in examples_of(self._storage, receipt):
                self._failures.pop(one.row, None)  # it was run again
                self._failures[one.row] = FailureLook(one.row, code, one.message)
        for row in list(self._failures)[:-FAILURES_KEPT]:
            del self._failures[row]


def _finished_at(receipt: Receipt) -> float:
    return receipt.finished_at


def _waiting(workers: list[WorkerLook]) -> str:
    if any(one.role == "prepare" and not one.is_silent for one in workers):
        return "preparing"
    return "starting workers" if any(not one.is_silent for one in workers) else "nobody works on it"


class _Pace:
    """How fast one worker is, by its own clock."""

    def __init__(self) -> None:
        self._rate = Rate()
        self._at = float("-inf")
        self._starved: deque[tuple[float, float]] = deque()
        self.newest: Reading | None = None
        self.rows_per_s = 0.0
        self.tokens_per_s = 0.0

    def add_reading(self, reading: Reading) -> None:
        """Take in a line of telemetry."""
        if self.newest is not None and reading.at <= self.newest.at:
            return
        self.newest = reading
        self._add(reading.at, reading.rows, reading.completion_tokens)
        if reading.feed is not None:
            self._starved.append((reading.at, reading.feed.starved_s))
            while self._starved[-1][0] - self._starved[0][0] > RATE_WINDOW_S:
                self._starved.popleft()

    def add_heartbeat(self, heartbeat: Mapping[str, Any]) -> None:
        """Take in a sign of life, and the reading in it."""
        reading = reading_from(heartbeat.get("reading"))
        if reading is not None:
            self.add_reading(reading)
        tokens = int(heartbeat.get("completion_tokens", 0))
        self._add(float(heartbeat["at"]), int(heartbeat.get("rows", 0)), tokens)

    def _add(self, at: float, rows: int, tokens: int) -> None:
        if at > self._at:
            self._at = at
            self.rows_per_s, self.tokens_per_s = self._rate.add(at, rows, tokens)

    def starved_share(self) -> float | None:
        """Share of the last half minute without a prepared row."""
        if len(self._starved) < 2:
            return None
        (start, before), (end, after) = self._starved[0], self._starved[-1]
        return min(1.0, max(0.0, after - before) / max(1e-9, end - start))
