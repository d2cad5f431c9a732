"""Readings come every while from a thread of their own; a slow disk or card stops nobody."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from batchwright.core.errors import StorageError
from batchwright.core.outcomes import Outcome
from batchwright.core.ports import EngineGauges
from batchwright.core.readings import STOPPING, CardReading, Reading
from batchwright.rundir.readings import gpu_of, worker_readings
from batchwright.rundir.storage import Storage
from batchwright.rundir.telemetry import Tally, Telemetry


class Reader:
    """Counts its readings; may be made to wait."""

    def __init__(self) -> None:
        self.count = 0
        self.seen = threading.Semaphore(0)

    def __call__(self) -> Reading:
        self.count += 1
        self.seen.release()
        return Reading(at=float(self.count), worker="w")


def test_there_is_a_first_reading_one_when_told_and_a_last_one(tmp_path: Path) -> None:
    storage, read = Storage(tmp_path), Reader()
    with Telemetry(storage, "w", read, every_s=600.0) as telemetry:
        assert read.seen.acquire(timeout=10)
        telemetry.soon()
        assert read.seen.acquire(timeout=10)
    assert [one.at for one in worker_readings(storage, "w")] == [1.0, 2.0, 3.0]
    assert telemetry.as_json() == {"at": 3.0, "worker": "w", "role": "infer", "host": "",
                                   "phase": "", "rows": 0, "prompt_tokens": 0, "cached_tokens": 0,
                                   "completion_tokens": 0, "restarts": 0, "kv_peak": 0.0,
                                   "cards": []}  # fmt: skip


def test_readings_come_by_themselves(tmp_path: Path) -> None:
    read = Reader()
    with Telemetry(Storage(tmp_path), "w", read, every_s=0.001):
        for _ in range(4):
            assert read.seen.acquire(timeout=10)


def test_a_disk_that_does_not_take_a_line_does_not_end_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_path: str, _line: bytes) -> None:
        raise StorageError("full")

    storage, read = Storage(tmp_path), Reader()
    monkeypatch.setattr(storage, "append", full)
    with Telemetry(storage, "w", read, every_s=600.0) as telemetry:
        assert read.seen.acquire(timeout=10)
    assert telemetry.as_json() is not None
    assert read.count == 2


def test_a_card_that_does_not_answer_keeps_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchwright.rundir.telemetry.LEAVE_S", 0.01)
    asked, answer = threading.Event(), threading.Event()

    def read() -> Reading:
        asked.set()
        answer.wait(10)
        return Reading(at=1.0, worker="w")

    telemetry = Telemetry(Storage(tmp_path), "w", read)
    with telemetry:
        assert asked.wait(10)
    assert telemetry.as_json() is None
    answer.set()


def up(*cards: CardReading, phase: str = "running") -> Reading:
    return Reading(at=1.0, worker="w", phase=phase, engine=EngineGauges(), cards=cards)


def test_cards_are_summed_up_over_the_time_in_which_an_engine_was_up() -> None:
    readings = [
        Reading(at=0.0, worker="w", cards=(CardReading(0, use=0.0, memory_bytes=1),)),
        up(CardReading(0, use=0.5, memory_bytes=700), CardReading(1, use=1.0, memory_bytes=900)),
        up(CardReading(0, memory_bytes=800), phase="waiting for rows"),
        up(CardReading(0, use=0.0, memory_bytes=1000), phase=STOPPING),
    ]
    assert gpu_of(readings) == (0.75, 900)
    assert gpu_of([up()]) == (None, None)


def test_a_tally_tells_what_the_prefix_cache_saved() -> None:
    tally = Tally()
    tally.add(Outcome(1, [5, 6], cached_tokens=16), prompt_tokens=20)
    tally.add(Outcome(2, [5]), prompt_tokens=30)
    assert tally.totals() == {
        "rows": 2, "prompt_tokens": 50, "cached_tokens": 16, "completion_tokens": 3,
    }  # fmt: skip
