"""An engine in a child process: what kills the engine does not kill the worker."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from batchwright.core.errors import BatchwrightError
from batchwright.core.outcomes import Outcome
from batchwright.core.ports import EngineGauges, EngineInfo, EngineSettings
from batchwright.core.records import Request
from batchwright.engines.last_log import LastLog, start_line
from batchwright.engines.wire import pack_requests, unpack_outcomes

POLL_S = 0.1  # how often a wait looks whether the child still lives
STOP_TIMEOUT_S = 5.0
CHILD = "from batchwright.engines.child import main; main()"


class Outbox(threading.Thread):
    """Sends messages from its own thread, so that a child that does not read stops nobody.

    Without it, a hanging child and a full pipe would block `submit` for ever, out of the reach of
    the hang detection; and parent and child could each wait for the other to read.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(name="engine-outbox", daemon=True)
        self._connection = connection
        self._messages: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()

    def put(self, message: tuple[Any, ...] | None) -> None:
        """Queue a message; None ends the thread."""
        self._messages.put(message)

    def run(self) -> None:
        """Send until told to end, or until nobody is at the other end."""
        with contextlib.suppress(OSError):
            while (message := self._messages.get()) is not None:
                self._connection.send(message)


class EngineProcess:
    """The Engine protocol over a child process that runs any other engine.

    The child is a fresh interpreter that leads its own session: the terminal's Ctrl-C does not
    reach it, and killing its process group takes its own children along. It is not a
    `multiprocessing` process, because spawning one runs the caller's main script again.

    Args:
        engine: `module:Class` of the engine to run; it is made without arguments.
        log_path: file to which the child's stdout and stderr are appended.
        start_timeout_s: an engine that is not up by then is taken for dead.
        hang_timeout_s: an engine with rows in flight that makes no step for so long, too.
        monotonic: seconds that never go back.
        start_gate: what it passes through while it starts; see `warm_up`.
    """

    def __init__(
        self,
        engine: str,
        *,
        log_path: Path,
        start_timeout_s: float = 1800.0,
        hang_timeout_s: float = 600.0,
        monotonic: Callable[[], float] = time.monotonic,
        start_gate: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._start_gate = start_gate
        self._engine = engine
        self._log_path = log_path
        self._log = LastLog(log_path)
        self._start_timeout_s = start_timeout_s
        self._hang_timeout_s = hang_timeout_s
        self._monotonic = monotonic
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._outbox: Outbox | None = None
        self._reset()

    def _reset(self) -> None:
        self._in_flight: set[int] = set()
        self._gauges = EngineGauges()
        self._progress_at = self._monotonic()
        self._info: EngineInfo | None = None
        self._error: BatchwrightError | None = None
        self._end_of_messages = False
        self._preloading = False

    def preload(self, settings: EngineSettings) -> None:
        """Start the child, and let it load what it can without a card or a model; never waits."""
        self.stop()
        self._reset()
        self._spawn()
        self._send("preload", self._engine, settings)
        self._preloading = True

    def start(self, settings: EngineSettings) -> EngineInfo:
        """Start the child, unless it has been preloaded, and wait until its engine is up.

        Raises:
            BatchwrightError: what the engine raised in the child.
            EngineError: the child died, or was not up in time.
        """
        if not self._preloading:
            self.stop()
            self._reset()
            self._spawn()
        self._preloading = False
        with self._start_gate():
            return self._start(settings)

    def _start(self, settings: EngineSettings) -> EngineInfo:
        self._send("start", self._engine, settings)
        deadline = self._monotonic() + self._start_timeout_s
        while self._info is None:
            alive = self._alive()
            self._receive(POLL_S)
            problem = self._problem_at_start(alive=alive, late=self._monotonic() > deadline)
            if problem is not None:
                self._kill()
                raise problem
        return self._info

    def submit(self, requests: Sequence[Request]) -> None:
        """Send requests to the engine; never blocks."""
        if not self._in_flight:
            self._progress_at = self._monotonic()
        self._in_flight.update(request.row for request in requests)
        self._send("submit", pack_requests(requests))

    def abort(self, rows: Iterable[int]) -> None:
        """Forget these rows; outcomes that are on their way already are dropped."""
        rows = list(rows)
        self._in_flight.difference_update(rows)
        self._send("abort", rows)

    def step(self, timeout_s: float) -> list[Outcome]:
        """Wait for outcomes, at most `timeout_s`.

        Raises:
            EngineDied: the child is gone or hangs. What it had finished came before.
        """
        deadline = self._monotonic() + timeout_s
        while True:
            remaining_s = deadline - self._monotonic()
            alive = self._alive()
            outcomes = self._receive(max(0.0, min(POLL_S, remaining_s)) if alive else 0.0)
            if outcomes:
                return outcomes
            self._raise_if_dead(alive=alive)
            if remaining_s <= 0:
                return []

    def gauges(self) -> EngineGauges:
        """The last reading that the child sent."""
        return self._gauges

    def stop(self) -> None:
        """Ask the child to stop, wait a little, then kill it and its children."""
        if self._process is None:
            return
        if self._preloading:  # it would hear of it only when all is loaded
            self._kill()
            return
        self._send("stop")
        deadline = self._monotonic() + STOP_TIMEOUT_S
        while not self._end_of_messages and self._alive() and self._monotonic() < deadline:
            self._receive(POLL_S)
        self._kill()

    def _spawn(self) -> None:
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = multiprocessing.Pipe()
        path = os.pathsep.join(entry for entry in sys.path if entry)
        with self._log_path.open("ab") as log:
            log.write(start_line(time.time()))
            log.flush()
            self._log.begin(log.tell())
            self._process = subprocess.Popen(
                # -P: a file in the user's folder must not shadow a module.
                [sys.executable, "-P", "-c", CHILD, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,  # libraries print what they like; our own stdout is for JSON
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        theirs.close()
        self._connection = ours
        self._outbox = Outbox(ours)
        self._outbox.start()

    def _send(self, *message: Any) -> None:
        if self._outbox is not None:
            self._outbox.put(message)

    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _receive(self, timeout_s: float) -> list[Outcome]:
        """Take every message that is there, waiting for the first one at most `timeout_s`."""
        outcomes: list[Outcome] = []
        if self._connection is None or self._end_of_messages:
            return outcomes
        try:
            while self._connection.poll(timeout_s):
                outcomes += self._handle(self._connection.recv())
                timeout_s = 0.0
        except (EOFError, OSError):
            self._end_of_messages = True
        return outcomes

    def _handle(self, message: tuple[Any, ...]) -> list[Outcome]:
        match message:
            case ("done", columns, gauges):
                return self._settle(unpack_outcomes(columns), gauges)
            case ("started", info):
                self._info = info
            case ("error", error):
                self._error = error
            case ("stopped",):
                self._end_of_messages = True
        return []

    def _settle(self, outcomes: list[Outcome], gauges: EngineGauges) -> list[Outcome]:
        if outcomes or gauges.steps != self._gauges.steps:
            self._progress_at = self._monotonic()
        self._gauges = gauges
        in_flight = self._in_flight
        wanted = [outcome for outcome in outcomes if outcome.row in in_flight]
        in_flight.difference_update([outcome.row for outcome in wanted])
        return wanted

    def _problem_at_start(self, *, alive: bool, late: bool) -> BatchwrightError | None:
        if self._info is not None:
            return None
        if self._error is not None:
            return self._log.explained(self._error)
        if not alive or self._end_of_messages:
            return self._log.did_not_start(self._fate())
        if late:
            return self._log.is_late(self._start_timeout_s)
        return None

    def _raise_if_dead(self, *, alive: bool) -> None:
        if self._error is not None:
            error = self._log.explained(self._error)
            self._kill()
            raise error
        if not alive or self._end_of_messages:
            fate = self._fate()
            self._kill()
            raise self._log.died(fate)
        idle_s = self._monotonic() - self._progress_at
        if self._in_flight and idle_s > self._hang_timeout_s:
            self._kill()
            raise self._log.died(f"the engine hangs: no step for {idle_s:.0f} s")

    def _fate(self) -> str:
        """How the child ended, for people."""
        code = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(STOP_TIMEOUT_S)
        if code is None:
            return "the engine process does not answer"
        if code >= 0:
            return f"the engine process ended with exit code {code}"
        name = signal.Signals(-code).name
        return f"the engine process was killed by {name}"

    def _kill(self) -> None:
        """End the child and everything that it started, and free what belongs to it here."""
        if self._process is not None:
            # The group and not the child alone: on GPUs vLLM runs its core in a grandchild.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._outbox is not None:
            self._outbox.put(None)
            self._outbox.join(1.0)
        if self._connection is not None:
            self._connection.close()
        self._process = self._outbox = self._connection = None
        self._end_of_messages = True
        self._in_flight.clear()
