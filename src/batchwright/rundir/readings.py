"""A run's telemetry: one line of JSON for each reading of a worker, and back."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache

import orjson
from pydantic import TypeAdapter, ValidationError

from batchwright.core.readings import Reading
from batchwright.rundir import layout
from batchwright.rundir.storage import Storage

_ENDING = ".jsonl"


def reading_line(reading: Reading) -> bytes:
    """A reading as a line; what nobody could tell is left out."""
    return orjson.dumps(_known(asdict(reading))) + b"\n"


def read_readings(storage: Storage) -> dict[str, list[Reading]]:
    """The readings of each worker, oldest first, by the worker's name.

    A line that is torn is left out: of a worker that was killed, or that is writing just now.
    """
    names = [name for name in storage.names(layout.TELEMETRY) if name.endswith(_ENDING)]
    workers = [name.removesuffix(_ENDING) for name in names]
    return {worker: worker_readings(storage, worker) for worker in workers}


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


def _parsed(line: bytes) -> Reading | None:
    try:
        return _adapter().validate_python(orjson.loads(line))
    except (orjson.JSONDecodeError, ValidationError):
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
