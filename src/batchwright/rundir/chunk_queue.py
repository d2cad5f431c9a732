"""Which chunk a worker takes next: the first free one, then those of workers that fell silent."""

from __future__ import annotations

from collections import deque
from itertools import chain

from batchwright.core.records import Chunk
from batchwright.rundir.ledger import AFTER_CHUNKS, EngineCount, Ledger
from batchwright.rundir.prepared import rows_are_coming
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage

# Files are listed at most this often while there is nothing new to claim.
LOOK_AGAIN_S = 0.25

# On a disk, until a worker has its first chunk: its engine is up and has nothing else to do.
LOOK_FIRST_S = 0.05

# In an object store they are looked at less and less often, down to this.
LONGEST_PAUSE_S = 5.0

# While so many times a worker's own rows are open, it need not count the others: nobody has more
# engines than that, or they all have enough.
MOST_SHARES = 64


def is_above_share(held_rows: int, rows: int, open_rows: int, engines: int) -> bool:
    """Whether another chunk would bring a worker further above its share than it is below.

    Args:
        held_rows: that it has and that are not finished.
        rows: of the chunk.
        open_rows: of the run that are not finished, those that workers hold included.
        engines: that share them.
    """
    return engines * (2 * held_rows + rows) > 2 * open_rows


class ChunkQueue:
    """Claims chunks for one worker, in the order's own order.

    An engine that is up before the others does not take the rows that they could run: towards the
    end of a run, and all through a small one, nobody holds more than its share of what is left.

    Chunks of grouped rows are cut between groups where they can be, so it does not matter for the
    prefix cache which worker has the next one: a group that was too large for one chunk costs one
    more prefill of what its rows share.
    """

    def __init__(self, storage: Storage, ledger: Ledger, *, pilot_only: bool = False) -> None:
        self._storage = storage
        self._ledger = ledger
        self._pilot_only = pilot_only
        self._state = RunState(storage)
        self._untouched: deque[Chunk] = deque()
        self._claimed_by_others: dict[str, Chunk] = {}
        self._mine: set[str] = set()
        self._engines = EngineCount(storage, ledger)
        self._leaves_rest = False
        self._looked_at = float("-inf")
        self._had_free = False
        self._first_pause_s = storage.seldom(LOOK_AGAIN_S)
        self._longest_pause_s = self._first_pause_s if storage.is_local else LONGEST_PAUSE_S
        self._had_none_yet = storage.is_local
        self._pause_s = LOOK_FIRST_S if storage.is_local else self._first_pause_s
        self._ledger.refresh()
        self._state.refresh_receipts()

    def take(self, now: float, held_rows: int = 0) -> Chunk | None:
        """Claim a chunk; None if none is free now, or what is left is for others.

        Args:
            now: monotonic seconds.
            held_rows: rows of the worker's chunks that are not finished.
        """
        self._leaves_rest = held_rows > 0 and self._has_its_share(held_rows, now)
        if self._leaves_rest:
            return None
        chunk = self._take_untouched()
        if chunk is None and now - self._looked_at >= self._pause_s:
            self._looked_at = now
            self._look()
            chunk = self._take_untouched() or self._take_over()
            self._rest(found=chunk is not None)
        return chunk

    def _has_its_share(self, held_rows: int, now: float) -> bool:
        """Whether what is left is for others. A pilot alone is not shared out: it is to fill an engine."""
        if self._pilot_only or not self._state.ordered or not self._untouched:
            return False
        if self._open_rows(held_rows) >= MOST_SHARES * held_rows:
            return False
        if now - self._looked_at >= self._pause_s:  # others have finished some of theirs
            self._looked_at = now
            self._look()
        rows = self._untouched[0].num_rows
        return is_above_share(held_rows, rows, self._open_rows(held_rows), self._engines.count(now))

    def _open_rows(self, held_rows: int) -> int:
        """Rows of the run that are not finished, as far as they matter for a share."""
        rows = held_rows
        for chunk in chain(self._untouched, self._claimed_by_others.values()):
            if rows >= MOST_SHARES * held_rows:
                break
            if chunk.name not in self._state.done:
                rows += chunk.num_rows
        return rows

    def has_free(self, now: float) -> bool:
        """Whether a chunk could be claimed at the last look. `now` is monotonic seconds."""
        if now - self._looked_at >= self._pause_s:
            self._looked_at = now
            self._look()
            self._had_free = self._any_free()
            self._rest(found=self._had_free)
        return self._had_free

    def has_work(self, now: float) -> bool | None:
        """Whether a chunk is free or rows are on their way; None while that is not known."""
        if self.has_free(now):
            return True
        if self.finished():
            return False
        return True if not self.ordered and rows_are_coming(self._storage) else None

    def _any_free(self) -> bool:
        names = [*(chunk.name for chunk in self._untouched), *self._claimed_by_others]
        # A chunk that nobody has claimed needs no look at its holder.
        names.sort(key=self._ledger.is_claimed)
        return any(self._ledger.is_free(name) for name in names)

    def _rest(self, *, found: bool) -> None:
        """Many workers may wait for the last few: in an object store each look has its price."""
        self._had_none_yet = self._had_none_yet and not self._mine and not self._state.done
        if self._had_none_yet:
            return
        longer_s = min(1.5 * self._pause_s, self._longest_pause_s)
        self._pause_s = self._first_pause_s if found else longer_s

    @property
    def ordered(self) -> bool:
        """Whether all rows were in chunks at the last look."""
        return self._state.ordered

    @property
    def more_to_come(self) -> bool:
        """Whether there are chunks that nobody has claimed, or will be, by the last look.

        Those that others hold, or are to have, are not counted: who waits for them waits at the end.
        """
        complete = self._state.ordered or (self._pilot_only and bool(self._state.pilot))
        return (bool(self._untouched) and not self._leaves_rest) or not complete

    def finished(self) -> bool:
        """Whether every chunk there will ever be has a receipt, by the last look."""
        if not self._state.ordered or self._untouched or self._claimed_by_others:
            return False
        return not (self._mine - self._state.done)

    def mark_done(self, chunk: Chunk) -> None:
        """The chunk has a receipt, ours or another's."""
        self._mine.discard(chunk.name)

    def _look(self) -> None:
        self._state.refresh_receipts()
        self._ledger.refresh(after=self._state.first_open, before=AFTER_CHUNKS)
        for batch in self._state.refresh_order():
            wanted = batch.chunks[: batch.pilot_chunks] if self._pilot_only else batch.chunks
            for chunk in wanted:
                if chunk.name not in self._state.done:
                    self._untouched.append(chunk)
        for name in list(self._claimed_by_others):
            if name in self._state.done:
                del self._claimed_by_others[name]

    def _take_untouched(self) -> Chunk | None:
        while self._untouched:
            chunk = self._untouched.popleft()
            # Whether a holder has fallen silent is asked when there is nothing else to do.
            if not self._ledger.is_claimed(chunk.name) and self._ledger.claim(chunk.name):
                self._mine.add(chunk.name)
                return chunk
            self._claimed_by_others[chunk.name] = chunk
        return None

    def _take_over(self) -> Chunk | None:
        for name, chunk in list(self._claimed_by_others.items()):
            if self._ledger.claim(name):
                del self._claimed_by_others[name]
                self._mine.add(name)
                return chunk
        return None
