"""A reading is the same after it was written and read; torn lines and new fields do no harm."""

from __future__ import annotations

from pathlib import Path

from batchwright.core.ports import EngineGauges
from batchwright.core.readings import CardReading, FeedReading, HostReading, ProcessReading, Reading
from batchwright.rundir import layout
from batchwright.rundir.readings import read_readings, reading_line, worker_readings
from batchwright.rundir.storage import Storage

FULL = Reading(
    at=10.5,
    worker="w",
    host="node-1",
    rows=7,
    engine=EngineGauges(running=3, kv_use=0.5),
    feed=FeedReading(in_flight=4, cap=8, max_num_seqs=8, starved_s=0.25),
    process=ProcessReading(1.5, memory_bytes=5),
    node=HostReading(cores=2, cpu_use=0.5),
    cards=(CardReading(0, use=0.9, throttled=("heat",)), CardReading(1)),
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    for reading in (FULL, Reading(at=11.0, worker="w")):
        storage.append(layout.telemetry("w"), reading_line(reading))
    assert worker_readings(storage, "w") == [FULL, Reading(at=11.0, worker="w")]


def test_a_torn_line_and_a_field_of_later_are_no_trouble(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.append(layout.telemetry("w"), b'{"at":1.0,"worker":"w","of_later":1}\n{"at":2.')
    assert [one.at for one in worker_readings(storage, "w")] == [1.0]


def test_only_workers_have_readings(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.append(layout.telemetry("w"), reading_line(FULL))
    storage.put(layout.timings("0-000001"), b"{}")
    assert list(read_readings(storage)) == ["w"]


def test_of_very_many_lines_some_stand_for_all(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    for worker in "ab":
        lines = (reading_line(Reading(at=float(at), worker=worker)) for at in range(2_000))
        storage.append(layout.telemetry(worker), b"".join(lines))
    found = read_readings(storage, most=2_000)
    assert [len(one) for one in found.values()] == [1_000, 1_000]
    assert [one[-1].at for one in found.values()] == [1_999.0, 1_999.0], "the newest is kept"
