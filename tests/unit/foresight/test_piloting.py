"""What the pilot's estimate takes from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchwright.core.records import OrderDecision
from batchwright.foresight.piloting import cached_share_of_job
from batchwright.rundir import artifacts, layout
from batchwright.rundir.decided import read_decision
from batchwright.rundir.storage import Storage


def decision(order: str, cache_tokens: int | None = 1000) -> OrderDecision:
    return OrderDecision(
        "auto", order, "a reason", 10, 10_000, 100, cache_tokens,
        hit_rate_file=0.2, hit_rate_best=0.8,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("decided", "share"),
    [
        (None, None),
        (decision("file", None), None),
        (decision("file"), 0.2),
        (decision("length"), 0.2),
        (decision("prefix"), 0.8),
    ],
)
def test_the_cache_saves_the_job_what_its_order_promises(
    decided: OrderDecision | None, share: float | None
) -> None:
    assert cached_share_of_job(decided) == share


def test_a_decision_is_read_as_it_was_written(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    assert read_decision(storage) is None
    storage.put(layout.ORDER_DECISION, artifacts.dump(decision("prefix")))
    assert read_decision(storage) == decision("prefix")
