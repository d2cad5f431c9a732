"""Threads that fetch the media of coming rows, so that no slow server keeps the engine waiting.

Threads, because the work is waiting for others: the content stays encoded here, and only its
header is read. Rows come out in the order in which their media have come.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from batchwright.core.media import MediaLimits, MediaReference, read_references
from batchwright.core.outcomes import Outcome
from batchwright.core.records import Request
from batchwright.media.content import check_installed
from batchwright.media.fetch import fetch
from batchwright.media.inline import Find
from batchwright.media.problems import MediaProblem

ROWS_PER_WORKER = 8  # rows in the pool for each thread: those behind a slow one go past it
MOST_BYTES = 256 << 20  # of content that waits for the engine; fetching pauses above that

Fetch = Callable[[MediaReference, MediaLimits, Find, Callable[[float], bool]], Any]


class _Task(NamedTuple):
    request: Request
    references: list[MediaReference]
    find: Find


class MediaPool:
    """Takes requests that name media, and gives them back with the content.

    Made for one caller; its threads start with the first request. What has been taken by them is
    bounded in rows and in bytes, whatever the servers do.

    Args:
        limits: what may be fetched, and by how many threads.
        fetch_one: gets one item.
        most_bytes: of content that waits for the engine.
    """

    def __init__(
        self, limits: MediaLimits, *, fetch_one: Fetch = fetch, most_bytes: int = MOST_BYTES
    ) -> None:
        self._limits = limits
        self._fetch_one = fetch_one
        self._most_bytes = most_bytes
        self._most_rows = ROWS_PER_WORKER * limits.workers
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._tasks: deque[_Task] = deque()
        self._ready: deque[Request] = deque()
        self._failed: list[Outcome] = []
        self._ready_bytes = 0
        self._rows = 0  # submitted, and neither taken nor failed
        self._threads: list[threading.Thread] = []
        self._fault: BaseException | None = None

    @property
    def rows(self) -> int:
        """Rows that were submitted and are neither taken nor failed."""
        return self._rows

    @property
    def wants_more(self) -> bool:
        """Whether rows should be submitted ahead of their turn; only once there are media at all."""
        return bool(self._threads) and self._rows < self._most_rows

    def submit(self, request: Request, find: Find) -> None:
        """Queue a request; one without media is ready at once."""
        references = read_references(request.extras)
        with self._changed:
            self._rows += 1
            if references:
                self._tasks.append(_Task(request, references, find))
            else:
                self._ready.append(request)
            self._changed.notify()
        if references and not self._threads:
            self._start(references)

    def take(self, count: int) -> list[Request]:
        """At most so many requests whose media have come."""
        with self._changed:
            if self._fault is not None:
                raise self._fault
            taken = [self._ready.popleft() for _ in range(min(count, len(self._ready)))]
            self._rows -= len(taken)
            self._ready_bytes -= sum(map(_num_bytes, taken))
            if taken:
                self._changed.notify_all()
            return taken

    def take_failed(self) -> list[Outcome]:
        """The outcomes of rows whose media cannot be had."""
        with self._changed:
            failed, self._failed = self._failed, []
            self._rows -= len(failed)
            return failed

    def wait(self, timeout_s: float) -> None:
        """Wait until a row is ready or has failed, for a caller that has nothing else to do."""
        with self._changed:
            if self._rows:
                self._changed.wait_for(
                    lambda: bool(self._ready or self._failed or self._fault), timeout_s
                )

    def stop(self) -> None:
        """Give up what has not come. Threads that wait for a server end with their attempt."""
        self._stopping.set()
        with self._changed:
            self._tasks.clear()
            self._changed.notify_all()

    def _start(self, references: list[MediaReference]) -> None:
        for reference in references:
            check_installed(reference.kind)
        # Daemons: a server that does not answer must not keep the process from ending.
        self._threads = [
            threading.Thread(target=self._work, name=f"media-{number}", daemon=True)
            for number in range(self._limits.workers)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            try:
                self._finish(task)
            except BaseException as error:  # noqa: BLE001  (a fault of ours: the caller raises it)
                self._break(error)
                return

    def _next(self) -> _Task | None:
        with self._changed:
            self._changed.wait_for(self._may_fetch)
            return None if self._stopping.is_set() else self._tasks.popleft()

    def _may_fetch(self) -> bool:
        if self._stopping.is_set():
            return True
        # With nothing ready the engine may be waiting: then one more item is never too many.
        return bool(self._tasks) and (self._ready_bytes < self._most_bytes or not self._ready)

    def _finish(self, task: _Task) -> None:
        request, limits = task.request, self._limits
        try:
            media = tuple(
                self._fetch_one(one, limits, task.find, self._stopping.wait)
                for one in task.references
            )
        except MediaProblem as problem:
            outcome = Outcome(request.row, [], error_code=problem.code, error=problem.message)
            with self._changed:
                self._failed.append(outcome)
                self._changed.notify_all()
            return
        ready = request._replace(media=media)
        with self._changed:
            self._ready.append(ready)
            self._ready_bytes += _num_bytes(ready)
            self._changed.notify_all()

    def _break(self, error: BaseException) -> None:
        with self._changed:
            self._fault = error
            self._changed.notify_all()


def _num_bytes(request: Request) -> int:
    return sum(len(one.data) for one in request.media)
