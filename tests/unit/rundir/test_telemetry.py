"""Lines once a second; the cards stand in them only when they are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from batchwright.core.ports import EngineGauges
from batchwright.rundir import layout
from batchwright.rundir.storage import Storage
from batchwright.rundir.telemetry import GpuReading, Tally, Telemetry, gpu_of
from tests.unit.rundir.small_runs import ManualClock


def written(storage: Storage) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in storage.read(layout.telemetry("w")).splitlines()]


def read_for(telemetry: Telemetry, clock: ManualClock, seconds: int) -> None:
    for _ in range(seconds):
        telemetry.read(Tally(), EngineGauges())
        clock.seconds += 1.0


def test_without_cards_a_line_says_nothing_of_them(tmp_path: Path) -> None:
    clock = ManualClock()
    telemetry = Telemetry(Storage(tmp_path), "w", clock)
    read_for(telemetry, clock, 1)
    telemetry.watch_gpus(lambda: None)
    read_for(telemetry, clock, 1)
    lines = written(Storage(tmp_path))
    assert len(lines) == 2
    assert not [name for line in lines for name in line if name.startswith("gpu")]
    assert gpu_of(lines) == (None, None)


def test_cards_are_read_once_a_second_and_summed_up(tmp_path: Path) -> None:
    readings = iter(
        [
            GpuReading(0.5, 700, 300.0),
            GpuReading(1.0, 900, 650.5),
            GpuReading(None, 800, None),  # the driver did not tell
        ]
    )
    clock = ManualClock()
    telemetry = Telemetry(Storage(tmp_path), "w", clock)
    telemetry.watch_gpus(lambda: next(readings))
    read_for(telemetry, clock, 1)
    clock.seconds -= 0.5  # too early: the cards are not asked
    read_for(telemetry, clock, 3)
    lines = written(Storage(tmp_path))
    assert [line.get("gpu_use") for line in lines] == [0.5, 1.0, None]
    assert [line["gpu_memory_bytes"] for line in lines] == [700, 900, 800]
    assert [line.get("gpu_power_w") for line in lines] == [300.0, 650.5, None]
    assert gpu_of(lines) == (0.75, 900)
