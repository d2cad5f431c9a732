"""Work that was done and does not count: by workers that were killed, or taken for dead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from batchwright.core.records import Receipt


@dataclass(frozen=True, slots=True)
class Waste:
    """Rows that an engine computed, wholly or in part, and that count in no part.

    Attributes:
        rows: how many.
        tokens: output tokens of those that were whole.
    """

    rows: int = 0
    tokens: int = 0

    def as_json(self) -> dict[str, int]:
        """By the names that every command's `--json` uses."""
        return {"wasted_rows": self.rows, "wasted_tokens": self.tokens}


NOTHING_WASTED = Waste()


def with_counted(
    workers: Mapping[str, dict[str, Any]], receipts: Iterable[Receipt]
) -> dict[str, dict[str, Any]]:
    """Each worker's last heartbeat, with the rows and tokens of its receipts beside its own figures."""
    rows: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for receipt in receipts:
        rows[receipt.worker] += receipt.rows
        tokens[receipt.worker] += receipt.completion_tokens
    return {
        name: {**state, "rows_counted": rows[name], "tokens_counted": tokens[name]}
        for name, state in workers.items()
    }


def wasted(workers: Iterable[Mapping[str, Any]], *, complete: bool) -> Waste:
    """What workers did in vain, as far as their last signs of life tell.

    Args:
        workers: see `with_counted`.
        complete: whether the run is; else what a living worker has not committed may still count.
    """
    over = [one for one in workers if complete or one.get("ended")]
    return Waste(
        rows=sum(
            max(0, one.get("rows", 0) + one.get("in_flight", 0) - one["rows_counted"])
            for one in over
        ),
        tokens=sum(max(0, one.get("completion_tokens", 0) - one["tokens_counted"]) for one in over),
    )
