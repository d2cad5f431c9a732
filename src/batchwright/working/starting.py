"""The start of an engine; and how often it may fail before nobody need try it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from batchwright.core.errors import EngineError, EngineNeverStarts
from batchwright.core.ports import EngineInfo
from batchwright.engines.feeder import Supervisor
from batchwright.rundir.events import Events, read_events
from batchwright.rundir.storage import Storage

# A bad node among good ones fails again and again, too: in the minutes that so many starts take, with
# the pauses that Kubernetes and Slurm make between them, a good one has long been up.
MOST_FAILED_STARTS = 20

HINT = "The engine's log is in logs/. Mend that and start again: one start that goes well ends the count."

STARTED, FAILED = "engine_up", "engine_start_failed"


def start_engine(supervisor: Supervisor, storage: Storage, events: Events) -> EngineInfo:
    """Start it, and note it if that fails.

    Raises:
        EngineNeverStarts: no engine of this run ever started, and many failed to.
        EngineError: it failed; it may work elsewhere, or later.
        JobError: the settings are wrong.
    """
    try:
        return supervisor.start()
    except EngineError as error:
        events.write(FAILED, reason=error.message)
        if is_hopeless(read_events(storage)):
            raise EngineNeverStarts(
                f"{error.message} (so did {MOST_FAILED_STARTS} starts or more, and none went well)",
                error.hint or HINT,
            ) from error
        raise


def is_hopeless(events: Iterable[Mapping[str, Any]]) -> bool:
    """Whether so many starts of a run failed, and not one went well."""
    found = [one["event"] for one in events]
    return STARTED not in found and found.count(FAILED) >= MOST_FAILED_STARTS
