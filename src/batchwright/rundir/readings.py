"""A run's telemetry: one line of JSON for each reading of a worker, and back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from batchwright.core.readings import STOPPING, Reading
from batchwright.rundir import layout
from batchwright.rundir.storage import Storage

_ENDING = ".jsonl"

# A hundred workers leave two million lines in ten hours. As many as these tell the same, in seconds.
MOST_READINGS, LEAST_READINGS = 50_000, 600


def reading_line(reading: Reading) -> bytes:
    """A reading as a line; what nobody could tell is left out."""
    return orjson.dumps(plain_reading(reading)) + b"\n"


def plain_reading(reading: Reading) -> dict[str, Any]:
    """A reading as plain values; what nobody could tell is left out."""
    return {name: _known(one) for name, one in asdict(reading).items() if one is not None}


def reading_from(values: object) -> Reading | None:
    """The reading of plain values; None if they are none."""
    try:
        return _adapter().validate_python(values)
    except ValidationError:
        return None


def read_readings(storage: Storage, most: int = MOST_READINGS) -> dict[str, list[Reading]]:
    """The readings of each worker, oldest first, by the worker's name.

    A line that is torn is left out: of a worker that was killed, or that is writing just now. Of a
    run that has more than `most` lines in all, about so many are read, evenly out of each worker's.
    """
    names = storage.names(layout.TELEMETRY)
    workers = {name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING)}
    workers.update(storage.folders(layout.TELEMETRY))  # of pieces, in an object store
    each = max(LEAST_READINGS, most // max(1, len(workers)))
    return {worker: thinned_readings(storage, worker, each) for worker in sorted(workers)}


def worker_readings(storage: Storage, worker: str) -> list[Reading]:
    """The readings of one worker, oldest first; none if it has left none."""
    lines = storage.read_log(layout.telemetry(worker)).splitlines()
    found = [_parsed(line) for line in lines]
    return [one for one in found if one is not None]


def thinned_readings(storage: Storage, worker: str, most: int) -> list[Reading]:
    """About so many readings of one worker, evenly out of all of them, the newest among them.

    What grows is exact in each of them, so nothing is lost but detail; a run of days has more lines
    than a drawing has points.
    """
    lines = storage.read_log(layout.telemetry(worker)).splitlines()
    every = max(1, -(-len(lines) // most))
    found = [_parsed(line) for line in lines[::-1][::every][::-1]]
    return [one for one in found if one is not None]


def newest_readings(storage: Storage, worker: str, size: int) -> list[Reading]:
    """The readings in the last `size` bytes, or somewhat more, of one worker's telemetry."""
    lines = storage.read_log_end(layout.telemetry(worker), size).splitlines()
    found = [_parsed(line) for line in lines]
    return [one for one in found if one is not None]


def gpu_of(readings: Iterable[Reading]) -> tuple[float | None, int | None]:
    """Mean use of the cards while an engine was up, and the most memory in use on one of them.

    Args:
        readings: of one worker or several; each stands for the same time of one worker.

    Returns:
        None for what no card told.
    """
    up = [one for one in readings if one.engine is not None and one.phase != STOPPING]
    cards = [card for one in up for card in one.cards]
    uses = [card.use for card in cards if card.use is not None]
    memories = [card.memory_bytes for card in cards if card.memory_bytes is not None]
    return sum(uses) / len(uses) if uses else None, max(memories, default=None)


def _parsed(line: bytes) -> Reading | None:
    try:
        return reading_from(orjson.loads(line))
    except orjson.JSONDecodeError:
        return None


@cache
def _adapter() -> TypeAdapter[Reading]:
    return TypeAdapter(Reading)


def _known(value: object) -> object:
    if isinstance(value, dict):
        return {name: _known(one) for name, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [_known(one) for one in value]
    return value
