"""The child side of an engine process: takes messages, steps the engine, reports."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from batchwright.core.errors import BatchwrightError
from batchwright.core.outcomes import Outcome
from batchwright.core.ports import Engine
from batchwright.engines.wire import pack_outcomes, unpack_requests

# Outcomes are sent together, at most this often: a message per step would cost more than it tells.
FLUSH_INTERVAL_S = 0.01
GAUGES_INTERVAL_S = 0.2
OUTCOMES_PER_MESSAGE = 4096
ORPHAN_CHECK_S = 0.5


def main() -> None:
    """Entry point, with two arguments: the pipe's file descriptor and the parent's process id."""
    connection = Connection(int(sys.argv[1]))
    watch_parent(int(sys.argv[2]))
    try:
        run(connection)
    except (EOFError, ConnectionError):
        return  # the parent has closed its end: nobody wants the rest
    finally:
        connection.close()


def watch_parent(parent_pid: int) -> None:
    """Kill this process and its own children when the parent is gone.

    A thread, and not PR_SET_PDEATHSIG: that would kill this process only, and leave behind the
    engine core that vLLM starts on GPUs, with all of the GPU's memory. It would also fire when
    the parent's *thread* that started us ends.
    """

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(ORPHAN_CHECK_S)
        os.killpg(0, signal.SIGKILL)  # this process leads its own group

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()


def run(connection: Connection) -> None:
    """Start the engine that the first messages name, then serve until told to stop."""
    kind, name, settings = connection.recv()
    try:
        engine = load_engine(name)
        if kind == "preload":
            engine.preload(settings)
            _, _, settings = connection.recv()  # who would rather stop kills this process
        info = engine.start(settings)
        # What is loaded stays, and rows hold few cycles: the collector would stop the steps again
        # and again, and find next to nothing.
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 20, 20)
        connection.send(("started", info))
        Server(connection, engine).serve()
        engine.stop()
    except BatchwrightError as error:
        connection.send(("error", error))
    else:
        connection.send(("stopped",))


def load_engine(name: str) -> Engine:
    """`module:Class` to an engine that is not started yet."""
    module, _, attribute = name.partition(":")
    engine: Engine = getattr(importlib.import_module(module), attribute)()
    return engine


class Server:
    """Steps one engine for the parent.

    It sends and receives in one thread. That cannot lock up, even with both pipes full: the
    parent sends from a thread of its own and always comes round to receiving.
    """

    def __init__(self, connection: Connection, engine: Engine) -> None:
        self._connection = connection
        self._engine = engine
        self._in_flight: set[int] = set()
        self._finished: list[Outcome] = []
        self._reported_at = 0.0
        self._stopping = False

    def serve(self) -> None:
        """Work until a `stop` message or the parent's end."""
        while True:
            self._take()
            if self._stopping:
                return
            if self._in_flight:
                self._work()
            self._report()

    def _take(self) -> None:
        """Take every message that is there; wait for one when there is nothing else to do."""
        while not self._stopping and (self._is_idle() or self._connection.poll(0)):
            self._handle(self._connection.recv())

    def _is_idle(self) -> bool:
        return not self._in_flight and not self._finished

    def _handle(self, message: tuple[Any, ...]) -> None:
        match message:
            case ("submit", columns):
                requests = unpack_requests(columns)
                self._in_flight.update(request.row for request in requests)
                self._engine.submit(requests)
            case ("abort", rows):
                self._in_flight.difference_update(rows)
                self._engine.abort(rows)
            case ("stop",):
                self._stopping = True

    def _work(self) -> None:
        try:
            outcomes = self._engine.step(0.0)
        except BatchwrightError:
            self._reported_at = 0.0
            self._report()  # what had finished before the engine died still counts
            raise
        self._in_flight.difference_update([outcome.row for outcome in outcomes])
        self._finished += outcomes

    def _report(self) -> None:
        now = time.monotonic()
        age_s = now - self._reported_at
        due = age_s >= FLUSH_INTERVAL_S or len(self._finished) >= OUTCOMES_PER_MESSAGE
        idle = not self._in_flight
        if (self._finished and (due or idle)) or idle or age_s >= GAUGES_INTERVAL_S:
            self._connection.send(("done", pack_outcomes(self._finished), self._engine.gauges()))
            self._finished.clear()
            self._reported_at = now
