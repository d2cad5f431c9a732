"""What the sequencer sees of the engines: who runs, what is taken, how fast it goes."""

from __future__ import annotations

from statistics import median
from typing import Any

from batchwright.core.ports import Clock
from batchwright.core.records import GROUPED, OrderedPart
from batchwright.plan.chunks import Ahead
from batchwright.plan.gate import Known
from batchwright.plan.guard import Rates, measure_rates
from batchwright.plan.pace import missing
from batchwright.rundir import layout
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.ledger import AFTER_CHUNKS, Roster
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage

LOOK_EVERY_S = 0.5
LOOK_FOR_ENGINE_S = 0.1

# What engines have taken and done is looked at so often at most, and for no more than a twentieth of
# the time: it is asked for each split, and splits may be many and small.
LOOK_AT_ENGINES_S = 0.25
LOOKING_SHARE = 0.05

# The workers of a run start at the same time; those with an engine have so long to show up.
PATIENCE_S = 10.0


class Watcher:
    """Reads claims, receipts and heartbeats.

    Args:
        storage: of the run.
        replicas: engines that share the work.
        kv_tokens: that an engine's KV cache should hold; 0 if not known.
        clock: the system's if it is left out.
    """

    def __init__(
        self, storage: Storage, replicas: int, kv_tokens: int, clock: Clock | None = None
    ) -> None:
        self._storage = storage
        self._replicas = replicas
        self._kv_tokens_expected = kv_tokens or None
        self._state = RunState(storage)
        self._roster = Roster(storage)
        self._looked_at = float("-inf")
        self._look_at_engines_at = float("-inf")
        self._claimed: set[str] = set()
        self._up_at: float | None = None
        self._sought_at = float("-inf")
        self._clock = clock or SystemClock()
        # Without that claim nobody drives this run, and there is nobody to wait for.
        claims = storage.names(layout.CLAIMS)
        driven = any(name.rpartition(".")[0] == layout.ORDER_UNIT for name in claims)
        self._patient_until = self._clock.monotonic() + (PATIENCE_S if driven else 0.0)

    def read_order(self) -> RunState:
        """The order as it is on the disk."""
        self._state.refresh_order()
        return self._state

    def ordered_parts(self) -> list[OrderedPart]:
        """Every prepared part, in input order."""
        first = [batch for batch in self._state.batches if batch.generation == 0]
        return [part for batch in first for part in batch.parts]

    def is_time_to_look(self) -> bool:
        """Whether the last look is some time ago; and if so, now is the last."""
        now = self._clock.monotonic()
        if now - self._looked_at < self._storage.seldom(LOOK_EVERY_S):
            return False
        self._looked_at = now
        return True

    def missing(self, ahead_s: float, at_least_rows: int = 0) -> Ahead:
        """What has to be cut now, so that no engine waits for so long; more if more rows are asked for.

        Nothing while engines are only starting: what is not cut yet can still be put in order.
        """
        if self.is_starting() and not at_least_rows:
            return Ahead(0, 0)
        self._look_at_engines()
        unclaimed = [
            chunk.num_rows
            for chunk in self._state.chunks
            if chunk.name not in self._claimed and chunk.name not in self._state.done
        ]
        needed = missing(unclaimed, self._replicas, self.rows_per_s, ahead_s)
        return Ahead(needed.chunks, max(needed.rows, at_least_rows - sum(unclaimed)))

    def _look_at_engines(self) -> None:
        began = self._clock.monotonic()
        if began < self._look_at_engines_at:
            return
        self._state.refresh_receipts()
        claims = self._storage.names(
            layout.CLAIMS, after=self._state.first_open, before=AFTER_CHUNKS
        )
        self._claimed |= {name.rpartition(".")[0] for name in claims}
        ended = self._clock.monotonic()
        pause_s = max(self._storage.seldom(LOOK_AT_ENGINES_S), (ended - began) / LOOKING_SHARE)
        self._look_at_engines_at = ended + pause_s

    @property
    def rows_per_s(self) -> float:
        """Rows that all engines run in a second, by the chunks so far; 0 before the first."""
        whole = [one for one in self._state.receipts.values() if one.sequence == 0 and one.last]
        seconds = sum(one.seconds for one in whole)
        return self._replicas * sum(one.rows for one in whole) / seconds if seconds else 0.0

    def rates(self) -> Rates:
        """Work per second of the finished chunks, in both orders."""
        self._state.refresh_receipts()
        grouped = {
            chunk.number
            for batch in self._state.batches
            if batch.generation == 0
            for chunk in batch.chunks
            if chunk.slices and chunk.slices[0].first_row == GROUPED
        }
        return measure_rates(self._state.receipts.values(), grouped)

    def known(self) -> Known:
        """What is known of engine and answers."""
        self._state.refresh_receipts()
        receipts = self._state.receipts.values()
        answered = sum(one.ok for one in receipts)
        tokens = sum(one.completion_tokens for one in receipts)
        rates = self.rates().in_file_order
        return Known(
            kv_tokens=self._kv_tokens(),
            mean_output=tokens / answered if answered else None,
            tokens_per_s=self._replicas * median(rates) if rates else None,
        )

    def may_decide(self) -> bool:
        """Whether the size of the KV cache is known, or a running worker will soon say it."""
        return self._kv_tokens() is not None or self.knows_soon()

    def knows_soon(self) -> bool:
        """Whether a running worker will soon have said how large its cache and its answers are."""
        self._state.refresh_receipts()
        workers = self._workers()
        if not workers:
            return self._is_patient()
        if not any(worker.get("engine") for worker in workers):
            return True
        return bool(self._kv_tokens()) and not self._state.receipts

    def is_starting(self) -> bool:
        """Whether engines are on their way and none is up yet."""
        workers = self._workers()
        if not workers:
            return self._is_patient()
        return not any(worker.get("engine") for worker in workers)

    def engine_up_s(self) -> float | None:
        """Seconds since an engine was first seen to be up; None before that."""
        now = self._clock.monotonic()
        if self._up_at is None and now - self._sought_at >= self._storage.seldom(LOOK_FOR_ENGINE_S):
            self._sought_at = now
            if any(one.get("engine") for one in self._workers()):
                self._up_at = now
        return None if self._up_at is None else now - self._up_at

    def somebody_runs(self) -> bool:
        """Whether there is a worker with an engine, or one that is starting it."""
        return bool(self._workers()) or self._is_patient()

    def _is_patient(self) -> bool:
        return self._clock.monotonic() < self._patient_until

    def _workers(self) -> list[dict[str, Any]]:
        found = self._roster.read().values()
        return [one for one in found if one.get("role") == "infer" and not one.get("ended")]

    def _kv_tokens(self) -> int | None:
        """By the newest engine; before one is up, what it should be."""
        engines = [one for one in self._workers() if one.get("engine")]
        if engines:
            newest = max(engines, key=lambda one: float(one["at"]))
            return int(newest["engine"].get("kv_tokens") or 0) or None
        return self._kv_tokens_expected
