"""How many chunks to keep ready for the engines while the order of the rest is open."""

from __future__ import annotations

from collections.abc import Sequence

from batchwright.plan.chunks import Ahead

# Rows for so long are kept ready. Who puts them there may be busy preparing a part, and else looks
# twice a second.
WHILE_PREPARING_S = 20.0
AFTER_S = 4.0

# An engine that is starting will not be up before so much time has passed.
SHORT_S = 5.0

# Before a chunk has ended nobody knows how fast an engine is; a fast one is assumed.
ASSUMED_ROWS_PER_S = 1000.0

# Sorting rows and writing them in another order, while engines must not wait: what 200,000 rows
# of 200 tokens took on a shared core.
ARRANGING_S_PER_ROW = 15e-6
ARRANGING_S_PER_TOKEN = 0.05e-6


def missing(unclaimed: Sequence[int], replicas: int, rows_per_s: float, ahead_s: float) -> Ahead:
    """What has to be cut now.

    Args:
        unclaimed: rows of each chunk that no worker has taken yet.
        replicas: engines that share the work.
        rows_per_s: that all of them run; 0 if not known.
        ahead_s: for so long there shall be rows.
    """
    rows = round(rows_per_s * ahead_s) - sum(unclaimed)
    return Ahead(max(0, 2 * replicas + 1 - len(unclaimed)), max(0, rows))


def arranging_s(rows: int, tokens: int) -> float:
    """Seconds that it takes to put `rows` rows of `tokens` tokens in another order."""
    return rows * ARRANGING_S_PER_ROW + tokens * ARRANGING_S_PER_TOKEN


def rows_meanwhile(seconds: float, replicas: int, rows_per_s: float) -> int:
    """Rows that the engines will run in that time; `rows_per_s` is 0 if not known."""
    return round(seconds * (rows_per_s or ASSUMED_ROWS_PER_S * replicas))
