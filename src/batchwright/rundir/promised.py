"""What was promised before a run: its plan and its pilot's report, read back."""

from __future__ import annotations

from functools import cache
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from batchwright.core.pilot import PilotReport
from batchwright.core.plan import Plan
from batchwright.rundir import layout
from batchwright.rundir.storage import Storage


def read_plan(storage: Storage) -> Plan | None:
    """The plan of the run's last start; None if there is none, or one of another version."""
    found = _object(storage, layout.PLAN)
    if found is None:
        return None
    body = {**found, "prediction": found.get("predicted")}
    try:
        plan: Plan = _adapter(Plan).validate_python(body)
    except ValidationError:
        return None
    return plan


def read_pilot(storage: Storage) -> PilotReport | None:
    """What the run's pilot said; None if there was none, or one of another version."""
    found = _object(storage, layout.PILOT)
    try:
        return None if found is None else _adapter(PilotReport).validate_python(found)
    except ValidationError:
        return None


def _object(storage: Storage, name: str) -> dict[str, Any] | None:
    raw = storage.read_if_there(name)
    try:
        value = None if raw is None else orjson.loads(raw)
    except orjson.JSONDecodeError:  # torn by a power cut: it is written again at the next start
        return None
    return value if isinstance(value, dict) else None


@cache
def _adapter(kind: type) -> Any:
    return TypeAdapter(kind)
