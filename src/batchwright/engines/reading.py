"""Thoughts and tool calls read out of answers, by vLLM's parsers in a process of their own."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from batchwright.core.errors import BatchwrightError, EngineError

CHILD = "from batchwright.engines.reading_child import main; main()"
START_TIMEOUT_S = 600.0
READ_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """Whose answers are read, and how.

    Attributes:
        model: folder or hub id, for its config.
        tokenizer: folder or hub id.
        revision: branch, tag or commit of the tokenizer.
        trust_remote_code: let the tokenizer's Python code run.
        reasoning_parser: one of vLLM's names; None if the model does not think aloud.
        tool_call_parser: one of vLLM's names; None if it calls no tools.
    """

    model: str
    tokenizer: str
    revision: str | None
    trust_remote_code: bool
    reasoning_parser: str | None
    tool_call_parser: str | None


class RawAnswer(NamedTuple):
    """An answer as it was generated.

    Attributes:
        token_ids: all of them.
        num_text_ids: so many of them make the text; an end token may follow.
        text: the text, if the engine made it (stop strings); None to decode the ids.
        tools: JSON text of the row's tools; empty if it has none.
        template_kwargs: JSON text of the chat template's values; some switch thinking off.
    """

    token_ids: Sequence[int]
    num_text_ids: int
    text: str | None
    tools: str
    template_kwargs: str


class ReadAnswer(NamedTuple):
    """The parts of an answer; `calls` are (id, name, arguments as JSON text) each.

    `text` is None where there are thoughts or calls, and nothing beside them.
    """

    text: str | None
    reasoning: str | None
    calls: tuple[tuple[str, str, str], ...] | None


class AnswerReader:
    """Sends answers to the reading process and takes their parts.

    vLLM's parsers are dozens of modules for dozens of models: importing them takes seconds and
    brings torch along, which no other process of a worker but the engine's needs. The thread that
    commits reads, and the main one where an answer must be checked before it counts.
    """

    def __init__(self, settings: ReaderSettings, log_path: Path) -> None:
        self._settings = settings
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._ready = False
        self._one_reads = threading.Lock()

    def start(self) -> None:
        """Start the process; it gets ready while others do their work."""
        ours, theirs = multiprocessing.Pipe()
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", CHILD, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        theirs.close()
        self._connection = ours
        self._ready = False
        ours.send(self._settings)

    def wait(self) -> None:
        """Wait until it is ready.

        Raises:
            JobError: vLLM has no such parser, or it does not suit the model.
            EngineError: the process ended.
        """
        if not self._ready:
            self._receive(START_TIMEOUT_S)
            self._ready = True

    def read(self, answers: Sequence[RawAnswer]) -> list[ReadAnswer]:
        """The parts of some answers, in order. Raises EngineError if the process ended."""
        self.wait()
        assert self._connection is not None, "started"
        with self._one_reads:
            self._connection.send(list(answers))
            found: list[ReadAnswer] = self._receive(READ_TIMEOUT_S)
        return found

    def stop(self) -> None:
        """End the process. May be called twice."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._connection = self._process = None

    def _receive(self, timeout_s: float) -> list[ReadAnswer]:
        assert self._connection is not None, "started"
        try:
            if not self._connection.poll(timeout_s):
                raise EngineError(
                    f"the answer parsers do not answer for {timeout_s:g} s", self._hint
                )
            kind, body = self._connection.recv()
        except (EOFError, OSError) as error:
            raise EngineError("the process of the answer parsers ended", self._hint) from error
        if kind == "error":
            problem: BatchwrightError = body
            raise problem
        found: list[ReadAnswer] = body
        return found

    @property
    def _hint(self) -> str:
        return f"Its last words are in {self._log_path}."
