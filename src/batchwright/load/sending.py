"""Rows to a database in requests of a good size, several at a time, until each is there or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from batchwright.core.errors import Refused, StoreError, Unreachable
from batchwright.core.ports import VectorStore
from batchwright.core.stores import RowFault
from batchwright.load.rows import refuse

# Ten attempts with these pauses are three minutes: a restart of a database passes unnoticed.
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0

# So many rows refused one by one, and none taken: it is not the rows.
ALL_REFUSED = 50


@dataclass(frozen=True, slots=True)
class Sending:
    """How rows are sent.

    Attributes:
        batch_bytes: of a request at most.
        parallel: requests at a time.
        attempts: at a request before the database is given up.
        pause: waits so many seconds, or raises Stopped.
    """

    batch_bytes: int
    parallel: int
    pause: Callable[[float], None]
    attempts: int = 10


class Sender:
    """Sends rows to one database.

    Args:
        store: opened.
        settings: how.
    """

    def __init__(self, store: VectorStore, settings: Sending) -> None:
        self._store = store
        self._settings = settings
        self._pool = ThreadPoolExecutor(settings.parallel, thread_name_prefix="load")
        self._refused = 0  # one by one since a request was taken

    def send(self, rows: pa.Table) -> list[RowFault]:
        """Write rows; returns those that the database does not take. All others are there then.

        Raises:
            StoreError: the database cannot be reached, or takes nothing at all.
        """
        rows, faults = self._within_limits(rows)
        batches = list(self._batches(rows))
        if len(batches) == 1 or self._settings.parallel == 1:
            found = [self._write(batch) for batch in batches]
        else:
            found = list(self._pool.map(self._write, batches))
        return faults + [fault for batch in found for fault in batch]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _within_limits(self, rows: pa.Table) -> tuple[pa.Table, list[RowFault]]:
        limit = self._store.limits.row_bytes
        sizes = self._store.sizes(rows)
        large = {
            int(
                place
            ): f"the row alone is about {int(sizes[place]):,} bytes, larger than the request "
            f"limit of {limit:,}"
            for place in np.flatnonzero(sizes > limit)
        }
        return refuse(rows, large, "row_too_large")

    def _batches(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Neighbours together, until the next one would be too much."""
        ends = np.cumsum(self._store.sizes(rows))
        start, limits = 0, self._store.limits
        while start < rows.num_rows:
            before = ends[start - 1] if start else 0
            stop = int(np.searchsorted(ends, before + self._settings.batch_bytes, side="right"))
            stop = min(max(stop, start + 1), start + limits.batch_rows)
            yield rows.slice(start, stop - start)
            start = stop

    def _write(self, batch: pa.Table) -> list[RowFault]:
        """One request; halved while it is refused, down to the row that is to blame."""
        try:
            self._try_again(batch)
        except Refused as refused:
            if batch.num_rows > 1:
                middle = batch.num_rows // 2
                return self._write(batch.slice(0, middle)) + self._write(batch.slice(middle))
            self._refused += 1
            if self._refused >= ALL_REFUSED:
                raise StoreError(
                    f"the database refuses every row, the last one with: {refused}",
                    "Mend that, then load again: it goes on where it stopped.",
                ) from None
            return refuse(batch, {0: str(refused)}, "store_refused")[1]
        self._refused = 0
        return []

    def _try_again(self, batch: pa.Table) -> None:
        """The same request until it is answered: an upsert may be repeated."""
        pause_s = FIRST_PAUSE_S
        for attempt in range(1, self._settings.attempts + 1):
            try:
                return self._store.write(batch)
            except Unreachable as lost:
                if attempt == self._settings.attempts:
                    raise StoreError(
                        f"the database cannot be reached: {lost}",
                        "Start it, then load again: it goes on where it stopped.",
                    ) from None
            self._settings.pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise AssertionError("the last attempt returns or raises")
