"""What a worker has done: counters for its heartbeat, and a reading every two seconds for later."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from batchwright.core.errors import StorageError
from batchwright.core.outcomes import Outcome
from batchwright.core.readings import Reading
from batchwright.rundir import layout
from batchwright.rundir.readings import plain_reading, reading_line
from batchwright.rundir.storage import Storage

EVERY_S = 2.0

# A driver or a disk that hangs must not keep a worker from leaving.
LEAVE_S = 5.0


class Telemetry:
    """Appends readings to `telemetry/<worker>.jsonl`, from a thread of its own.

    Neither the driver of a card, which takes its time to answer, nor a slow disk stops whoever
    feeds the engine. One reading is made at the start, one at the end, and one when told so.

    Args:
        storage: of the run.
        worker: its name.
        read: makes a reading; called by the thread, and at the end by whoever leaves.
        every_s: seconds from one to the next.
    """

    def __init__(
        self, storage: Storage, worker: str, read: Callable[[], Reading], every_s: float = EVERY_S
    ) -> None:
        self._storage = storage
        self._path = layout.telemetry(worker)
        self._read = read
        self._every_s = every_s
        self._done = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._newest: Reading | None = None

    def __enter__(self) -> Telemetry:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done = True
        self._wake.set()
        self._thread.join(LEAVE_S)
        if not self._thread.is_alive():
            self._note()

    def soon(self) -> None:
        """Make a reading now: something has changed."""
        self._wake.set()

    def as_json(self) -> dict[str, Any] | None:
        """The newest reading as plain values, for the heartbeat; None before the first."""
        return None if self._newest is None else plain_reading(self._newest)

    def _run(self) -> None:
        while not self._done:
            self._note()
            self._wake.wait(self._every_s)
            self._wake.clear()

    def _note(self) -> None:
        reading = self._read()
        self._newest = reading
        # A full disk is met by the work itself too, which knows what to do.
        with contextlib.suppress(StorageError):
            self._storage.append(self._path, reading_line(reading))


class Tally:
    """Counters of one worker, read by its heartbeat thread."""

    def __init__(self) -> None:
        self.phase = "waiting for rows"
        self._finished = 0
        self._committed = 0
        self._tokens = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0

    def add(self, outcome: Outcome, prompt_tokens: int) -> None:
        """Count a row that came out of the engine."""
        self._finished += 1
        self._tokens += outcome.num_output_tokens
        self._prompt_tokens += prompt_tokens
        self._cached_tokens += outcome.cached_tokens

    def totals(self) -> dict[str, int]:
        """What has come out of the engine since this worker began."""
        return {
            "rows": self._finished,
            "prompt_tokens": self._prompt_tokens,
            "cached_tokens": self._cached_tokens,
            "completion_tokens": self._tokens,
        }

    def committed(self, rows: int) -> None:
        """Count rows that have a receipt."""
        self._committed += rows

    def as_json(self) -> dict[str, Any]:
        """What the heartbeat tells."""
        return {
            "phase": self.phase,
            "rows": self._finished,
            "uncommitted": self._finished - self._committed,
            **self.totals(),
        }
