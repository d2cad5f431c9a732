"""Compiles each distinct constraint once, in a process beside, before the engine sees it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import weakref
from multiprocessing.connection import Connection

from batchwright.config.job import Job
from batchwright.constraints.backends import backend_in_use
from batchwright.constraints.plain import plain_problem, regex_problem
from batchwright.core.errors import RowError
from batchwright.core.ids import text_digest
from batchwright.core.structured import Constraint, constraint_in

CHILD = "from batchwright.constraints.child import main; main()"

# Loading xgrammar brings torch along, which takes 6 s on a slow machine.
START_TIMEOUT_S = 300.0

# A constraint that takes longer would hold up an engine, too.
LIMIT_S = 10.0

# Rows with a schema each would otherwise fill the memory.
CACHE_SIZE = 4096


class Compiler:
    """Says what is wrong with a constraint, in the words of the engine's own compiler.

    The compilers are native code, which a bad constraint can crash or keep busy for ever: that is
    why they run in a process beside. It is started with the first constraint, and again after one
    that it did not survive. Where the library is not installed, constraints are checked by the
    meta-schema of JSON Schema and by Python's `re`.

    Args:
        backend: of vLLM: `xgrammar`, `guidance`, `auto` or another one.
        limit_s: how long a compile may take.
        child: what the process beside runs.
    """

    def __init__(self, backend: str, *, limit_s: float = LIMIT_S, child: str = CHILD) -> None:
        self._backend = backend
        self._limit_s = limit_s
        self._child = child
        self._available = backend in ("xgrammar", "guidance", "auto")
        self._connection: Connection | None = None
        self._end: weakref.finalize[..., Compiler] | None = None
        self._known: dict[bytes, str | None] = {}

    def problem(self, constraint: Constraint) -> str | None:
        """What is wrong with a constraint; None if nothing is."""
        key = text_digest(f"{constraint.kind} {constraint.value}")
        if key not in self._known:
            if len(self._known) >= CACHE_SIZE:
                self._known.clear()
            self._known[key] = self._find(constraint)
        return self._known[key]

    def close(self) -> None:
        """End the process; it is started again when there is need."""
        if self._end is not None:
            self._end()
        self._connection = None

    def _find(self, constraint: Constraint) -> str | None:
        problem = plain_problem(constraint) if constraint.kind != "json" else None
        connection = None if problem else self._started()
        if problem is None and connection is not None:
            problem = self._compile(connection, constraint)
        elif problem is None and constraint.kind == "regex":
            problem = regex_problem(constraint.value)
        # Of schemas the compiler speaks first: its words are the plainer ones.
        return problem or (plain_problem(constraint) if constraint.kind == "json" else None)

    def _compile(self, connection: Connection, constraint: Constraint) -> str | None:
        try:
            # The process has an alarm of its own, for the case that this one is gone by then.
            connection.send((constraint, 2 * self._limit_s))
            if connection.poll(self._limit_s):
                problem: str | None = connection.recv()
                return problem
        except (EOFError, OSError):
            self.close()
            return f"compiling it crashes the compiler ({self._backend})"
        self.close()
        return f"compiling it takes longer than {self._limit_s:g} s ({self._backend})"

    def _started(self) -> Connection | None:
        """The connection to the process; None if the backend's library is not installed."""
        if self._connection is None and self._available:
            connection = self._spawn()
            try:
                self._available = connection.poll(START_TIMEOUT_S) and bool(connection.recv())
            except (EOFError, OSError):
                self._available = False  # it is installed, but does not load
            if not self._available:
                self.close()
        return self._connection

    def _spawn(self) -> Connection:
        ours, theirs = multiprocessing.Pipe()
        path = os.pathsep.join(entry for entry in sys.path if entry)
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", self._child, str(theirs.fileno()), self._backend],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # the terminal's Ctrl-C is not a crash of the compiler
            env={**os.environ, "PYTHONPATH": path},
        )
        theirs.close()
        self._connection = ours
        self._end = weakref.finalize(self, _end, ours, process)
        return ours


def job_compiler(job: Job) -> Compiler:
    """What checks the constraints of a job and of its rows, as its engine would."""
    engine = job.engine
    return Compiler(backend_in_use(job.sampling.structured_outputs, engine.options, engine.kind))


class RowConstraints:
    """Rejects rows whose own constraint the engine could not use.

    Args:
        compiler: of the job's backend.
        default: the job's own sampling fields, which were checked before the run.
    """

    def __init__(self, compiler: Compiler, default: str) -> None:
        self._compiler = compiler
        self._default = default
        self._own = constraint_in(default)

    def check(self, sampling: str) -> None:
        """Raises RowError `bad_schema`. Cheap for rows without a constraint of their own."""
        if sampling == self._default:
            return
        constraint = constraint_in(sampling)
        if constraint is None or constraint == self._own:
            return
        problem = self._compiler.problem(constraint)
        if problem is not None:
            raise RowError("bad_schema", f"structured_outputs.{constraint.kind}: {problem}")


def _end(connection: Connection, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()
