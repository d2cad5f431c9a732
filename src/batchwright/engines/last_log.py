"""An engine's log apart by its starts, and what the last of them tells of its end, for people."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from batchwright.core.errors import BatchwrightError, EngineDied, EngineError, JobError
from batchwright.core.faults import Fault
from batchwright.engines.fatal_lines import MAX_CHARS, find_fault, last_words

TAIL_LINES = 20

# Of a start that printed more, the end is read.
_MAX_BYTES = MAX_CHARS


_START = re.compile(r"=== batchwright starts an engine: (\S+) ===\n")


class EngineStart(NamedTuple):
    """What an engine printed from one start until the next one; `at` is Unix time, 0 if not known."""

    at: float
    text: str


def start_line(now: float) -> bytes:
    """What is written to an engine's log ahead of each start."""
    at = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
    return f"=== batchwright starts an engine: {at} ===\n".encode()


def find_starts(log_text: str) -> list[EngineStart]:
    """The starts in a log or in the end of one, oldest first.

    Before them stands what has no such line ahead of it: the rest of a start that is cut off, or all
    that an earlier version wrote; it may be empty.
    """
    ahead, *rest = _START.split(log_text)
    times = [datetime.fromisoformat(one).timestamp() for one in rest[::2]]
    return [EngineStart(0.0, ahead), *map(EngineStart, times, rest[1::2])]


def ended_before(starts: Sequence[EngineStart], at: float) -> EngineStart:
    """The start that had ended when an engine was up again at that time."""
    by_then = [one for one in starts if one.at <= at]
    return by_then[-2] if len(by_then) > 1 else by_then[0]


class LastLog:
    """The lines that an engine has printed since it was last started.

    Args:
        path: of the log, which several starts have written one after the other.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = 0

    def begin(self, offset: int) -> None:
        """A new start writes from here on."""
        self._start = offset

    def did_not_start(self, fate: str) -> BatchwrightError:
        """The error of a child that ended before its engine was up."""
        return self._ended("the engine did not start", fate)

    def is_late(self, timeout_s: float) -> EngineError:
        """The error of an engine that is not up in time."""
        return EngineError(
            f"the engine was not up after {timeout_s:g} s{self._tail()}",
            "Raise engine.start_timeout_s if loading the model takes longer.",
        )

    def explained(self, error: BatchwrightError) -> BatchwrightError:
        """What the engine itself raised, in plain words where they are known.

        An error that says what to do is left as it is.
        """
        if error.hint or not isinstance(error, EngineError | JobError):
            return error
        what, _, why = error.message.partition(": ")
        fault = find_fault(f"{self._text()}\n{why}")
        if fault is None:
            if isinstance(error, JobError) or not self._text().strip():
                return error
            return type(error)(error.message, self._last_words())
        message = f"{what}: {self._told(fault)}"
        if isinstance(error, EngineDied):
            return EngineDied(message, f"{fault.remedy} {self._where(fault)}")
        kind = JobError if fault.of_job or isinstance(error, JobError) else EngineError
        return kind(message + self._shown(fault), fault.remedy)

    def died(self, fate: str) -> EngineDied:
        """The error of an engine that is gone while it had work."""
        fault = find_fault(f"{self._text()}\n{fate}")
        if fault is None:
            return EngineDied(fate, self._last_words())
        return EngineDied(f"{fate}: {self._told(fault)}", f"{fault.remedy} {self._where(fault)}")

    def _ended(self, what: str, fate: str) -> BatchwrightError:
        fault = find_fault(f"{self._text()}\n{fate}")
        if fault is None:
            return EngineError(f"{what}: {fate}{self._tail()}", self._last_words())
        kind = JobError if fault.of_job else EngineError
        return kind(f"{what}: {self._told(fault)}{self._shown(fault)}", fault.remedy)

    @staticmethod
    def _told(fault: Fault) -> str:
        return f"{fault.summary} [{fault.code}]"

    def _shown(self, fault: Fault) -> str:
        """The line itself, and where it stands."""
        return f"\n  | {fault.line}\n  {self._where(fault)}"

    def _where(self, fault: Fault) -> str:
        number = self._line_number(fault)
        return f"Log: {self._path}" + (f", line {number}" if number else "")

    def _line_number(self, fault: Fault) -> int | None:
        """In the whole file; None for a line that is in the error alone."""
        offset = self._offset()
        text = self._text()
        if fault.number > text.count("\n") + bool(text):
            return None
        with self._path.open("rb") as log:
            before = sum(log.read(min(1 << 20, offset - at)).count(b"\n")
                         for at in range(0, offset, 1 << 20))  # fmt: skip
        return before + fault.number

    def _last_words(self) -> str:
        return f"Its last words are in {self._path}."

    def _tail(self) -> str:
        return "".join(f"\n  | {line}" for line in last_words(self._text(), TAIL_LINES))

    def _offset(self) -> int:
        size = self._path.stat().st_size if self._path.is_file() else 0
        return max(self._start, size - _MAX_BYTES)

    def _text(self) -> str:
        if not self._path.is_file():
            return ""
        with self._path.open("rb") as log:
            log.seek(self._offset())
            return log.read().decode(errors="replace")
