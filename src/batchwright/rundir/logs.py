"""What the workers of a run tell of their work: a log each, and all of them merged by time.

Stages use the standard `logging`, with a logger below `batchwright` each and figures in `extra`:
`logging.getLogger("batchwright.engine").info("engine up", extra={"figures": {"seconds": 21.4}})`.
"""

from __future__ import annotations

import heapq
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import orjson

from batchwright.core.errors import JobError, StorageError
from batchwright.core.log_levels import LEVELS, STAGES, parse_levels
from batchwright.rundir import layout
from batchwright.rundir.storage import Storage

VARIABLE = "BATCHWRIGHT_LOG"
ROOT = "batchwright"

# Events of a run that something went wrong; the others tell how it goes.
_WARNINGS = frozenset({"worker_died", "worker_stalled", "engines_given_up"})
_OF_EVENT = ("at", "worker", "event")


@dataclass(frozen=True, slots=True)
class LogLine:
    """Something that a worker did or met.

    Attributes:
        at: Unix time.
        level: one of LEVELS.
        worker: its name.
        stage: one of STAGES.
        event: what happened, in a few words.
        figures: what belongs to it.
        traceback: of a fault.
    """

    at: float
    level: str
    worker: str
    stage: str
    event: str
    figures: dict[str, Any]
    traceback: str = ""

    def as_text(self) -> str:
        """A line for people; the traceback follows on lines of its own."""
        when = datetime.fromtimestamp(self.at).astimezone().isoformat(" ", "milliseconds")[:23]
        figures = "".join(f" {name}={_shown(value)}" for name, value in self.figures.items())
        head = f"{when} {self.level:7} {self.worker} {self.stage}: {self.event}{figures}"
        return f"{head}\n{self.traceback.rstrip()}" if self.traceback else head


class _Handler(logging.Handler):
    """Writes records to a worker's log in the run directory."""

    def __init__(self, storage: Storage, worker: str) -> None:
        super().__init__()
        self._storage = storage
        self._worker = worker

    def emit(self, record: logging.LogRecord) -> None:
        """Append one line. A place that refuses it will refuse the work too, which tells."""
        line = {name: value for name, value in asdict(_line(record, self._worker)).items() if value}
        try:
            self._storage.append(layout.worker_log(self._worker), _dump(line) + b"\n")
        except StorageError:
            return


class _OnStderr(logging.Handler):
    """Shows records to whoever reads a pod's or a task's own output."""

    def __init__(self, worker: str) -> None:
        super().__init__()
        self._worker = worker

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        sys.stderr.write(_line(record, self._worker).as_text() + "\n")


@contextmanager
def logging_to(storage: Storage, worker: str, levels: str) -> Iterator[None]:
    """Log to a worker's file, and what ends it by surprise with its traceback.

    Args:
        storage: of the run.
        worker: whose log it is.
        levels: of the job; the environment's BATCHWRIGHT_LOG beats them, and shows lines on stderr.

    Raises:
        JobError: BATCHWRIGHT_LOG names a level or a stage that is not known.
    """
    asked = os.environ.get(VARIABLE, "").strip()
    _set_levels(asked or levels)
    root = logging.getLogger(ROOT)
    handlers: list[logging.Handler] = [_Handler(storage, worker)]
    if asked:
        handlers.append(_OnStderr(worker))
    for handler in handlers:
        root.addHandler(handler)
    propagated, root.propagate = root.propagate, False
    try:
        yield
    finally:
        root.propagate = propagated
        for handler in handlers:
            root.removeHandler(handler)


def _set_levels(text: str) -> None:
    try:
        levels = parse_levels(text)
    except ValueError as error:
        raise JobError(f"{VARIABLE}={text}: {error}", "Like this: info,engine=debug") from None
    logging.getLogger(ROOT).setLevel(levels[""].upper())
    for stage in STAGES:
        level = levels.get(stage)
        logger = logging.getLogger(f"{ROOT}.{stage}")
        logger.setLevel(logging.NOTSET if level is None else level.upper())


def _line(record: logging.LogRecord, worker: str) -> LogLine:
    trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
    level = record.levelname.lower()
    return LogLine(
        at=round(record.created, 3),
        level=level if level in LEVELS else LEVELS[-1],
        worker=worker,
        stage=record.name.removeprefix(ROOT).lstrip("."),
        event=record.getMessage(),
        figures=getattr(record, "figures", {}),
        traceback=trace,
    )


class RunLogs:
    """The logs of all workers of a run, and its events, read as they grow.

    Args:
        storage: the run directory.
        worker: only workers whose names have this in them; all if empty.
        level: the least level to show.
    """

    def __init__(self, storage: Storage, worker: str = "", level: str = "debug") -> None:
        self._storage = storage
        self._worker = worker
        self._least = LEVELS.index(level)
        self._read: dict[str, int] = {}
        self._seen: set[int] = set()

    def new_lines(self) -> Iterator[LogLine]:
        """The lines that have come since the last call, by time."""
        paths = [
            layout.EVENTS,
            *(layout.worker_log(name) for name in workers_with_logs(self._storage)),
        ]
        return heapq.merge(*(self._lines(path) for path in paths), key=lambda line: line.at)

    def _lines(self, path: str) -> list[LogLine]:
        found = [_parsed(line) for line in self._fresh(path)]
        wanted = [line for line in found if line is not None and self._wants(line)]
        return sorted(wanted, key=lambda line: line.at)

    def _fresh(self, path: str) -> list[bytes]:
        body = self._storage.read_log(path)
        if not self._storage.is_local:  # its pieces are of several writers: none is the last
            lines = [line for line in body.splitlines() if hash(line) not in self._seen]
            self._seen.update(map(hash, lines))
            return lines
        body = body[self._read.get(path, 0) :]
        whole = body[: body.rfind(b"\n") + 1]  # the last one may still be on its way
        self._read[path] = self._read.get(path, 0) + len(whole)
        return whole.splitlines()

    def _wants(self, line: LogLine) -> bool:
        return self._worker in line.worker and LEVELS.index(line.level) >= self._least


def workers_with_logs(storage: Storage) -> list[str]:
    """Names of the workers that have logged something, on a disk or in an object store."""
    files = [name for name in storage.names(layout.LOGS) if name.endswith(".jsonl")]
    return sorted({*(name.removesuffix(".jsonl") for name in files), *storage.folders(layout.LOGS)})


def _parsed(raw: bytes) -> LogLine | None:
    """A line of a log or of the events; None for one that is torn or not ours."""
    try:
        body = orjson.loads(raw)
        at, worker, event = float(body["at"]), str(body["worker"]), str(body["event"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None
    if "level" in body:
        figures, trace = body.get("figures", {}), body.get("traceback", "")
        return LogLine(at, body["level"], worker, body.get("stage", ""), event, figures, trace)
    level = "warning" if event in _WARNINGS else "info"
    figures = {name: value for name, value in body.items() if name not in _OF_EVENT}
    return LogLine(at, level, worker, "run", event.replace("_", " "), figures)


def _dump(value: Any) -> bytes:
    return orjson.dumps(value, default=str, option=orjson.OPT_SERIALIZE_NUMPY)


def _shown(value: Any) -> str:
    if isinstance(value, str) and not any(one.isspace() or one == '"' for one in value):
        return value
    return _dump(value).decode()
