"""A worker's counters as metrics of Ray, beside Ray's own in its dashboard and in Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchwright.core.errors import StorageError
from batchwright.rundir.ledger import read_heartbeat
from batchwright.rundir.locations import is_address
from batchwright.rundir.storage import Storage

EVERY_S = 5.0

# Name, what it tells, and the counter of the heartbeat that holds it.
GAUGES = (
    ("batchwright_rows_finished", "Rows that came out of this worker's engine.", "rows"),
    ("batchwright_rows_uncommitted", "Of these, rows not committed yet.", "uncommitted"),
    ("batchwright_prompt_tokens", "Prompt tokens of finished rows.", "prompt_tokens"),
    ("batchwright_completion_tokens", "Output tokens of finished rows.", "completion_tokens"),
    ("batchwright_splits_prepared", "Pieces of input that were prepared.", "splits"),
)


class RayMetrics:
    """Reads the worker's own heartbeat every few seconds, and sets Ray's gauges by it."""

    def __init__(self, location: str, role: str, name: str) -> None:
        self._location = location
        self._name = name
        self._tags = {"run": Path(location).name, "role": role, "worker": name}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._export, name="ray-metrics", daemon=True)

    def __enter__(self) -> RayMetrics:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _export(self) -> None:
        from ray.util.metrics import Gauge

        tag_keys = tuple(self._tags)
        gauges = {key: Gauge(name, text, tag_keys) for name, text, key in GAUGES}
        ended = False
        while not ended:
            ended = self._done.wait(EVERY_S)  # the last counts are exported too
            for key, value in readings(self._heartbeat()).items():
                gauges[key].set(value, tags=self._tags)

    def _heartbeat(self) -> dict[str, Any]:
        if not is_address(self._location) and not Path(self._location).is_dir():
            return {}  # Storage would make the folder
        try:
            return read_heartbeat(Storage(self._location), self._name)
        except StorageError:  # the worker itself will say so
            return {}


def readings(heartbeat: Mapping[str, Any]) -> dict[str, float]:
    """The counters that a heartbeat holds."""
    keys = [key for _, _, key in GAUGES]
    return {
        key: float(heartbeat[key]) for key in keys if isinstance(heartbeat.get(key), int | float)
    }
