"""A worker's reading: what it says of itself, and its processes, machine and cards at that moment."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from typing import Any

from batchwright.core.ports import Clock
from batchwright.core.readings import CardReading, Reading
from batchwright.machine.hardware import usable_cores
from batchwright.machine.host import Family, Host
from batchwright.rundir.storage import Storage


def _no_cards(_own: Collection[int]) -> tuple[CardReading, ...]:
    return ()


class Surroundings:
    """Looks around for one worker; not from two threads at the same time.

    Args:
        storage: of the run; its disk is watched where it is a folder.
        worker: its name.
        role: `infer` or `prepare`.
        clock: the time.
    """

    def __init__(self, storage: Storage, worker: str, role: str, clock: Clock) -> None:
        self._worker = worker
        self._role = role
        self._clock = clock
        self._hostname = socket.gethostname()
        self._family = Family()
        self._host = Host(usable_cores(), storage.root if storage.is_local else None)
        self._read_cards: Callable[[Collection[int]], tuple[CardReading, ...]] = _no_cards

    def watch_cards(self, read: Callable[[Collection[int]], tuple[CardReading, ...]]) -> None:
        """Read the cards too from now on; `read` is given the worker's own pids."""
        self._read_cards = read

    def reading(self, **own: Any) -> Reading:
        """A line of telemetry: what there is to see now, and what the worker says of itself."""
        process = self._family.read()
        return Reading(
            at=round(self._clock.now(), 3),
            worker=self._worker,
            role=self._role,
            host=self._hostname,
            process=process,
            node=self._host.read(),
            cards=self._read_cards(self._family.pids),
            **own,
        )
