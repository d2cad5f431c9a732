"""How many rows an engine is given: those that it runs, and a few that stand ready.

How many run at the same time is the engine's own decision. It knows to the block what its KV cache
has free, and keeps a reserve for the rows that grow (vLLM's `watermark`): a cap from outside, worked
out from the rows' expected lengths, left 5 % of the rows' places empty (decision 0033).
"""

from __future__ import annotations

from collections.abc import Sequence

from batchwright.core.ports import EngineGauges
from batchwright.core.records import Request
from batchwright.core.workload import guess_output

LEAST_AHEAD = 16

# The engine has no room while rows wait and so much of the cache is in use. What is used goes up and
# down with rows that are of one age, so it may fall by some before there is room again.
FULL_FROM, FULL_TO = 0.85, 0.7


def ahead_of(running: int) -> int:
    """Rows that stand ready for the places that become free, in one step or a few."""
    return max(LEAST_AHEAD, running // 4)


class Flow:
    """Follows what an engine runs; without clock and engine.

    Rows are not sent much further ahead than that: one that waits in the engine is lost to it at a
    stop, and gets older there (`run.row_timeout_s`).

    Args:
        max_num_seqs: the most rows that run at the same time.
        max_rows: that the engine may have, those that wait in it included.
        kv_tokens: that fit the pool; 0 if not known.

    Attributes:
        running: rows that the engine is known to have room for, or by guess at first.
    """

    def __init__(self, max_num_seqs: int, max_rows: int, kv_tokens: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._max_rows = max_rows
        self._kv_tokens = kv_tokens
        self._full = False
        self.running = 0

    @property
    def cap(self) -> int:
        """Rows that the engine runs once it has enough of them."""
        return self.running if self._full else self._max_num_seqs

    @property
    def begun(self) -> bool:
        """Whether the first rows were seen."""
        return self.running > 0

    def begin(self, rows: Sequence[Request]) -> None:
        """Guess the room from the first rows: they are in the middle of their answers, on average."""
        tokens = sum(row.prompt_tokens + guess_output(row.max_tokens) / 2 for row in rows)
        fitting = self._max_num_seqs
        if self._kv_tokens:
            fitting = int(self._kv_tokens * len(rows) / max(1.0, tokens))
        self.running = max(1, min(fitting, self._max_num_seqs))

    def look(self, gauges: EngineGauges) -> int:
        """How many rows the engine should have now, those that wait in it included."""
        used = FULL_TO if self._full else FULL_FROM
        self._full = gauges.waiting > 0 and gauges.kv_use > used
        if self._full:
            self.running = max(1, gauges.running)
            return min(self._max_rows, self.running + ahead_of(self.running))
        # All of them may have ended in one step: what has run once will run again.
        self.running = min(self._max_num_seqs, max(self.running, gauges.running))
        if self.running == self._max_num_seqs:
            return self._max_rows
        return min(self._max_rows, 2 * self.running + LEAST_AHEAD)
