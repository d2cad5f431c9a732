"""Seconds go to what was missing, and to one thing only."""

from __future__ import annotations

from batchwright.core.ports import EngineGauges
from batchwright.rundir.meters import CommitMeter, FeedMeter, PrepareMeter
from tests.unit.rundir.small_runs import ManualClock


def test_time_goes_to_what_the_engine_was_short_of() -> None:
    meter = FeedMeter(8)
    meter.look(100.0, "rows")  # nothing is known of the time before
    meter.look(102.0, None)
    meter.look(105.0, "media")
    meter.look(105.5, "rows")
    meter.look(106.5, None)
    reading = meter.reading(CommitMeter())
    assert (reading.starved_s, reading.media_s, reading.commit_wait_s) == (3.0, 0.5, 0.0)


def test_time_spent_waiting_for_commits_is_not_counted_twice() -> None:
    meter = FeedMeter(8)
    meter.look(100.0, "rows")
    meter.wait_for_commits(4.0)
    meter.look(105.0, None)
    reading = meter.reading(CommitMeter())
    assert (reading.starved_s, reading.commit_wait_s) == (1.0, 4.0)


def test_the_start_of_another_engine_is_no_lack_of_rows() -> None:
    meter = FeedMeter(8)
    meter.look(100.0, "rows")
    meter.forget()
    meter.look(160.0, None)
    assert meter.reading(CommitMeter()).starved_s == 0.0


def test_the_peak_is_that_since_the_last_reading() -> None:
    meter = FeedMeter(8)
    for kv_use in (0.2, 0.7, 0.1):
        meter.note(EngineGauges(kv_use=kv_use), in_flight=5, cap=6, commits_waiting=1)
    assert [meter.take_kv_peak(), meter.take_kv_peak()] == [0.7, 0.0]
    reading = meter.reading(CommitMeter())
    assert (reading.in_flight, reading.cap, reading.max_num_seqs, reading.commits_waiting) == (
        5, 6, 8, 1,
    )  # fmt: skip


def test_a_preparing_process_knows_its_steps() -> None:
    clock = ManualClock()
    meter = PrepareMeter(clock.monotonic)

    def batches():
        for number in range(2):
            clock.seconds += 1.0
            yield number

    for _ in meter.reading_of(batches()):
        with meter.timing("tokenize"):
            clock.seconds += 3.0
    with meter.timing("idle"):
        clock.seconds += 0.5
    reading = meter.reading()
    assert (reading.read_s, reading.tokenize_s, reading.write_s, reading.idle_s) == (
        2.0, 6.0, 0.0, 0.5,
    )  # fmt: skip
