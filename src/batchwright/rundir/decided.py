"""In which order a run decided to take its rows."""

from __future__ import annotations

from batchwright.core.records import OrderDecision
from batchwright.rundir import artifacts, layout
from batchwright.rundir.storage import Storage


def read_decision(storage: Storage) -> OrderDecision | None:
    """The decision on the order; None while there is none, or if nothing was to decide."""
    raw = storage.read_if_there(layout.ORDER_DECISION)
    return None if raw is None else artifacts.load(OrderDecision, raw, layout.ORDER_DECISION)
