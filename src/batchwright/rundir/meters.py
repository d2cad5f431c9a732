"""Where the time of a worker goes: small counters that one thread fills and another one reads."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

from batchwright.core.ports import EngineGauges
from batchwright.core.readings import FeedReading, PrepareReading
from batchwright.core.records import PreparedReceipt

Shortage = Literal["rows", "media"]
Step = Literal["read", "tokenize", "write", "idle"]

Item = TypeVar("Item")


class CommitMeter:
    """What commits took and wrote; filled by the thread that makes them."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.written_bytes = 0
        self.rows = 0

    def add_part(self, written_bytes: int, rows: int) -> None:
        """A part counts from now on."""
        self.written_bytes += written_bytes
        self.rows += rows


class FeedMeter:
    """What stands between prepared rows and the engine; filled by the loop that feeds.

    Args:
        max_num_seqs: rows that the engine may run at the same time.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._looked_at = float("inf")
        self._short_of: Shortage | None = None
        self._short_s: defaultdict[Shortage, float] = defaultdict(float)
        self._commit_wait_s = 0.0
        self._kv_peak = 0.0
        self.in_flight = 0
        self.cap = max_num_seqs
        self.commits_waiting = 0
        self.gauges: EngineGauges | None = None

    def look(self, now: float, short_of: Shortage | None) -> None:
        """The time since the last look went to what the engine was short of then."""
        if self._short_of is not None:
            self._short_s[self._short_of] += max(0.0, now - self._looked_at)
        self._looked_at = now
        self._short_of = short_of

    def forget(self) -> None:
        """The time since the last look was for something else: an engine was started."""
        self._short_of = None

    def wait_for_commits(self, seconds: float) -> None:
        """The loop could not go on before a commit was done; nothing else was missing then."""
        self._commit_wait_s += seconds
        self._looked_at += seconds

    def note(self, gauges: EngineGauges, in_flight: int, cap: int, commits_waiting: int) -> None:
        """Keep how the engine is doing."""
        self.gauges = gauges
        self.in_flight = in_flight
        self.cap = cap
        self.commits_waiting = commits_waiting
        self._kv_peak = max(self._kv_peak, gauges.kv_use)

    def take_kv_peak(self) -> float:
        """The most of the KV cache in use since this was asked last."""
        peak, self._kv_peak = self._kv_peak, 0.0
        return peak

    def reading(self, commits: CommitMeter) -> FeedReading:
        """All of it for a line of telemetry."""
        return FeedReading(
            in_flight=self.in_flight,
            cap=self.cap,
            max_num_seqs=self._max_num_seqs,
            starved_s=round(self._short_s["rows"], 3),
            media_s=round(self._short_s["media"], 3),
            commit_wait_s=round(self._commit_wait_s, 3),
            commits_waiting=self.commits_waiting,
            commit_s=round(commits.seconds, 3),
            committed_bytes=commits.written_bytes,
            committed_rows=commits.rows,
        )


class PrepareMeter:
    """What a process that reads and tokenises spends its time on."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._spent_s: defaultdict[Step, float] = defaultdict(float)
        self.rows = self.tokens = 0

    @contextmanager
    def timing(self, step: Step) -> Iterator[None]:
        """Count the time inside as spent on a step."""
        begun = self._monotonic()
        try:
            yield
        finally:
            self._spent_s[step] += self._monotonic() - begun

    def reading_of(self, items: Iterator[Item]) -> Iterator[Item]:
        """The same items; the time that each takes to come is for reading."""
        while True:
            with self.timing("read"):
                item = next(items, None)
            if item is None:
                return
            yield item

    def add(self, receipt: PreparedReceipt) -> None:
        """A part is prepared."""
        self.rows += receipt.rows
        self.tokens += receipt.prompt_tokens

    def reading(self) -> PrepareReading:
        """All of it for a line of telemetry."""
        spent_s = self._spent_s
        return PrepareReading(
            rows=self.rows,
            tokens=self.tokens,
            read_s=round(spent_s["read"], 3),
            tokenize_s=round(spent_s["tokenize"], 3),
            write_s=round(spent_s["write"], 3),
            idle_s=round(spent_s["idle"], 3),
        )
