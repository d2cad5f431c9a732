"""Commits that are under way: made in a thread of their own, taken note of by the worker's loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from batchwright.core.outcomes import Outcome
from batchwright.core.ports import Clock
from batchwright.core.records import Chunk
from batchwright.rundir.meters import FeedMeter
from batchwright.working.committer import ActiveChunk, Committer

# So many chunks may wait for their commits: a slow disk must not stop the engine at once, but what
# is not written takes memory.
COMMITS_AT_ONCE = 8


class Commit(NamedTuple):
    """A part of a chunk that is written.

    Attributes:
        chunk: that it is of.
        rows: in it.
        last: whether the chunk is done with it.
        mine: whether its receipt is ours, not that of another worker who was faster.
    """

    chunk: Chunk
    rows: int
    last: bool
    mine: bool


class _UnderWay(NamedTuple):
    chunk: Chunk
    rows: int
    last: bool
    future: Future[bool]


class Commits:
    """Writes parts behind the worker's back, one after the other.

    Args:
        committer: writes them.
        clock: for what the engine waits.
        meter: is told of it.
    """

    def __init__(self, committer: Committer, clock: Clock, meter: FeedMeter) -> None:
        self._committer = committer
        self._clock = clock
        self._meter = meter
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._under_way: deque[_UnderWay] = deque()

    def begin(self, active: ActiveChunk, outcomes: Sequence[Outcome], *, last: bool) -> None:
        """Write these outcomes of a chunk."""
        future = self._pool.submit(self._committer.commit, active, outcomes, last=last)
        self._under_way.append(_UnderWay(active.chunk, len(outcomes), last, future))

    def finished(self) -> Iterator[Commit]:
        """Commits that are done; waits while too many are under way.

        Raises:
            StorageError: what could not be written.
        """
        return self._take(COMMITS_AT_ONCE)

    def rest(self) -> Iterator[Commit]:
        """All that are under way, once they are done. Raises as `finished` does."""
        return self._take(0)

    def _take(self, at_most: int) -> Iterator[Commit]:
        while self._under_way and self._is_due(at_most):
            chunk, rows, last, future = self._under_way.popleft()
            if at_most and not future.done():
                begun = self._clock.monotonic()
                wait([future])
                self._meter.wait_for_commits(self._clock.monotonic() - begun)
            yield Commit(chunk, rows, last, future.result())
        self._meter.commits_waiting = len(self._under_way)

    def _is_due(self, at_most: int) -> bool:
        return len(self._under_way) > at_most or self._under_way[0].future.done()

    def close(self) -> None:
        """Wait until all are made."""
        self._pool.shutdown(wait=True)
