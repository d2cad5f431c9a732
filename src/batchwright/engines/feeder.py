"""Keeps one engine full, and no fuller; and alive, whatever a row does to it."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from batchwright.core.errors import EngineDied, EngineError
from batchwright.core.outcomes import Outcome
from batchwright.core.ports import Engine, EngineGauges, EngineInfo, EngineSettings
from batchwright.core.records import Request
from batchwright.engines.flow import Flow, ahead_of
from batchwright.engines.suspects import Suspects

DEFAULT_TOKEN_BUDGET = 16_384  # the most that an engine takes unless told
BUDGETS_AHEAD = 3
START_ATTEMPTS = 3

_log = logging.getLogger("batchwright.engine")


@dataclass(frozen=True, slots=True)
class FeedPolicy:
    """How many requests the engine holds: those that run, and a few so that no slot waits.

    Attributes:
        max_num_seqs: rows that run at the same time: the engine's limit, or those that its KV pool
            is known to have room for.
        margin: rows more than that, ready to take a slot in the very step in which it is free.
        max_tokens_ahead: prompt tokens that the rows of the margin may have together. Some steps
            of work are enough; more would only be lost at a stop.
    """

    max_num_seqs: int
    margin: int
    max_tokens_ahead: int

    @classmethod
    def of(cls, settings: EngineSettings) -> FeedPolicy:
        """The policy for an engine's settings."""
        budget = int(settings.options.get("max_num_batched_tokens") or DEFAULT_TOKEN_BUDGET)
        return cls(settings.max_num_seqs, ahead_of(settings.max_num_seqs), BUDGETS_AHEAD * budget)

    def for_now(self, running: int, rows: int) -> FeedPolicy:
        """The policy while `running` rows run and the engine should have `rows`."""
        return replace(self, max_num_seqs=running, margin=rows - running)

    @property
    def max_rows(self) -> int:
        """Rows that are taken from the caller at the same time."""
        return self.max_num_seqs + self.margin

    def num_to_send(self, held: int, ahead: int, waiting: Iterable[int]) -> int:
        """How many of the waiting rows the engine should get now.

        Args:
            held: rows in the engine.
            ahead: prompt tokens of those among them that are more than may run.
            waiting: prompt lengths of the rows that wait, in order.
        """
        count = 0
        for length in islice(waiting, max(0, self.max_rows - held)):
            if held + count >= self.max_num_seqs:
                ahead += length
                if ahead > self.max_tokens_ahead and count + held > 0:
                    break
            count += 1
        return count


class Flight(NamedTuple):
    """A request in the engine, when it was sent, and how often by now."""

    request: Request
    sent_at: float
    attempts: int


class Supervisor:
    """Feeds an engine and restarts it when it dies; every row comes out exactly once.

    Args:
        make_engine: makes an engine that is not started yet.
        settings: what each engine is started with.
        row_timeout_s: a row that has been in the engine for longer fails with `timeout`.
        policy: how full to keep the engine; made from the settings unless given.
        max_restarts: so many deaths with no row finished in between end the run.
        monotonic: seconds that never go back.
    """

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        settings: EngineSettings,
        *,
        row_timeout_s: float = 3600.0,
        policy: FeedPolicy | None = None,
        max_restarts: int = 20,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_engine = make_engine
        self._settings = settings
        self._full_policy = self._policy = policy or FeedPolicy.of(settings)
        self._flow = self._new_flow(0)
        self._row_timeout_s = row_timeout_s
        self._max_restarts = max_restarts
        self._monotonic = monotonic
        self._engine: Engine | None = None
        self._waiting: deque[Request] = deque()  # not in the engine yet
        self._flights: dict[int, Flight] = {}  # in the engine, oldest first
        self._accused: dict[int, Flight] = {}  # were in a dead engine, and wait for their turn
        self._suspects = Suspects()
        self._fruitless_deaths = 0
        self.restarts = 0
        self.last_death = ""

    @property
    def in_flight(self) -> int:
        """Rows that were submitted and have no outcome yet."""
        return len(self._waiting) + len(self._flights) + len(self._accused)

    @property
    def cap(self) -> int:
        """Rows that the engine should hold by now."""
        return self._flow.cap

    @property
    def max_num_seqs(self) -> int:
        """Rows that the engine may run at the same time."""
        return self._full_policy.max_num_seqs

    def preload(self) -> None:
        """Let the engine load what it can, before it is known that it will be needed."""
        self._engine = self._make_engine()
        self._engine.preload(self._settings)

    def start(self) -> EngineInfo:
        """Start the engine. A first start that fails is not tried again."""
        self._engine = self._engine or self._make_engine()
        info = self._engine.start(self._settings)
        if not self.restarts:
            self._flow = self._new_flow(info.kv_tokens)
        return info

    def room(self) -> int:
        """How many more rows to submit now; none while a killer is being looked for."""
        if self._suspects.active:
            return 0
        return max(0, self._policy.max_rows - self.in_flight)

    def submit(self, requests: Sequence[Request]) -> None:
        """Take requests; they go to the engine with the next step."""
        self._waiting.extend(requests)

    def step(self, timeout_s: float) -> list[Outcome]:
        """Feed the engine, wait for outcomes at most about `timeout_s`, and refill it.

        After a death this takes as long as the engine needs to start.

        Raises:
            EngineError: the engine dies again and again, or cannot be started again.
            JobError: the engine finds on a restart that the settings are wrong.
        """
        outcomes: list[Outcome] = []
        try:
            self._feed()
            outcomes += self._settle(self._running_engine().step(timeout_s))
            outcomes += self._expire()
            self._feed()
        except EngineDied as death:
            outcomes += self._recover(death)
        return outcomes

    def gauges(self) -> EngineGauges:
        """The engine's gauges."""
        return self._running_engine().gauges()

    def oldest(self, count: int = 3) -> list[tuple[int, float]]:
        """The rows that have been in the engine longest, and for how many seconds."""
        now = self._monotonic()
        oldest = islice(self._flights.items(), count)
        return [(row, now - flight.sent_at) for row, flight in oldest]

    def stop(self) -> None:
        """Stop the engine; rows in flight have no outcome. May be called twice."""
        if self._engine is not None:
            self._engine.stop()
            self._engine = None

    def _running_engine(self) -> Engine:
        if self._engine is None:
            raise EngineError("the engine is not started")
        return self._engine

    def _feed(self) -> None:
        if self._suspects.active:
            if not self._flights:
                self._send([self._accused.pop(row) for row in self._suspects.group()])
            return
        self._look()
        if not self._waiting:
            return
        over = islice(self._flights.values(), self._policy.max_num_seqs, None)
        ahead = sum(flight.request.prompt_tokens for flight in over)
        waiting = (request.prompt_tokens for request in self._waiting)
        count = self._policy.num_to_send(len(self._flights), ahead, waiting)
        self._send([Flight(self._waiting.popleft(), 0.0, 0) for _ in range(count)])

    def _new_flow(self, kv_tokens: int) -> Flow:
        policy = self._full_policy
        return Flow(policy.max_num_seqs, policy.max_rows, kv_tokens)

    def _look(self) -> None:
        """Find out how many rows the engine has room for now."""
        if not self._flow.begun:
            if not self._waiting:
                return
            self._flow.begin(self._waiting)
        rows = self._flow.look(self._running_engine().gauges())
        self._policy = self._full_policy.for_now(self._flow.running, rows)

    def _send(self, flights: list[Flight]) -> None:
        if not flights:
            return
        now = self._monotonic()
        for request, _, attempts in flights:
            self._flights[request.row] = Flight(request, now, attempts + 1)
        self._running_engine().submit([flight.request for flight in flights])

    def _settle(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Close the rows that came back; a late outcome of a row that is closed is dropped."""
        settled: list[Outcome] = []
        for outcome in outcomes:
            flight = self._flights.pop(outcome.row, None)
            if flight is None:
                continue
            self._suspects.finished(outcome.row)
            if outcome.error_code is None:
                self._fruitless_deaths = 0
            if flight.attempts > 1:
                settled.append(outcome._replace(attempts=flight.attempts))
            else:
                settled.append(outcome)
        return settled

    def _expire(self) -> list[Outcome]:
        """Fail the rows that are too old; they stand at the front."""
        limit = self._monotonic() - self._row_timeout_s
        late: list[Flight] = []
        for flight in self._flights.values():
            if flight.sent_at > limit:
                break
            late.append(flight)
        if not late:
            return []
        rows = [flight.request.row for flight in late]
        told = {"rows": len(rows), "first": rows[:5], "timeout_s": self._row_timeout_s}
        _log.warning("rows timed out", extra={"figures": told})
        self._running_engine().abort(rows)
        error = f"no answer after {self._row_timeout_s:g} s"
        return self._settle([failed(flight, "timeout", error) for flight in late])

    def _recover(self, death: EngineDied) -> list[Outcome]:
        """Restart the engine and decide about the rows that were in it."""
        self.last_death = death.message
        self._fruitless_deaths += 1
        told = {"reason": death.message, "hint": death.hint, "in_flight": len(self._flights)}
        _log.error("engine died", extra={"figures": told})
        if self._fruitless_deaths > self._max_restarts:
            message = f"the engine died {self._fruitless_deaths} times and finished no row between"
            raise EngineError(f"{message}; last: {death.message}", death.hint) from death
        flights, self._flights = self._flights, {}
        guilty = self._suspects.died(list(flights))
        if guilty:
            _log.error("rows kill the engine", extra={"figures": {"rows": list(guilty)}})
        error = f"the engine died twice with this row alone in it; last: {death.message}"
        verdicts = [failed(flights.pop(row), "engine_killed", error) for row in guilty]
        self._accused.update(flights)
        self._restart()
        return verdicts

    def _restart(self) -> None:
        """Start a new engine; the dead one's memory may take a moment to be free."""
        self.restarts += 1
        attempt = 0
        while True:
            attempt += 1
            self.stop()
            try:
                self.start()
            except EngineError as error:  # a JobError is none: no second start mends the settings
                told = {"attempt": attempt, "of": START_ATTEMPTS, "reason": error.message}
                _log.warning("engine does not start again", extra={"figures": told})
                if attempt >= START_ATTEMPTS:
                    raise
            else:
                return


def failed(flight: Flight, code: str, error: str) -> Outcome:
    """A failed outcome for a request in flight."""
    row = flight.request.row
    return Outcome(row, [], error_code=code, error=error, attempts=flight.attempts)
