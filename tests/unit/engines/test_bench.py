"""The bench: how many rows run, what is measured, and when it gives up. Time is counted calls."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from batchwright.core.errors import EngineDied, EngineError, JobError, Stopped
from batchwright.core.outcomes import Outcome
from batchwright.core.ports import EngineGauges, EngineSettings
from batchwright.core.records import Request
from batchwright.engines.bench import Bench, BenchMaker, Pace
from batchwright.engines.fake import FakeEngine
from batchwright.engines.feeder import Supervisor

LONG = '{"ignore_eos":true}'
PACE = Pace(min_s=1.0, turns=2.0)
SETTINGS = EngineSettings("fake", "", max_num_seqs=64, max_model_len=512, vocab_size=256)


class SteadyEngine(FakeEngine):
    """Every running row makes one token in a step; the most rows at a time is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, list[int]] = {}
        self.most = self.made = self.steps = 0
        self.dies_at = 0

    def submit(self, requests: Sequence[Request]) -> None:
        self.rows |= {one.row: [one.max_tokens] for one in requests}
        self.most = max(self.most, len(self.rows))

    def step(self, timeout_s: float) -> list[Outcome]:
        self.steps += 1
        if self.steps == self.dies_at:
            raise EngineDied("killed")
        self.made += len(self.rows)
        for left in self.rows.values():
            left[0] -= 1
        done = [row for row, left in self.rows.items() if left[0] <= 0]
        for row in done:
            del self.rows[row]
        return [Outcome(row, [1] * 5, finish_reason="length", cached_tokens=2) for row in done]

    def gauges(self) -> EngineGauges:
        return EngineGauges(
            steps=self.steps, output_tokens=self.made, prompt_tokens=10 * self.steps, kv_use=0.25
        )


def stream(sampling: str = LONG) -> itertools.chain[Request]:
    return itertools.chain.from_iterable(
        [Request(row, [1, 2, 3], 3 + row % 5, sampling)] for row in itertools.count()
    )


def bench_of(engines: Sequence[FakeEngine], sampling: str = LONG) -> Bench:
    ticks = itertools.count()
    supervisors = [Supervisor(lambda e=one: e, SETTINGS, max_restarts=0) for one in engines]
    bench = Bench(supervisors, stream(sampling), lambda: float(next(ticks)))
    bench.start()
    return bench


def test_so_many_rows_run_and_their_tokens_are_counted() -> None:
    engine = SteadyEngine()
    bench = bench_of([engine])
    reading = bench.measure(8, PACE, 1e9, threading.Event())
    assert reading is not None
    assert engine.most == 8
    # One step is one tick of the clock here: eight rows make eight tokens in it.
    assert reading.output_tokens_per_s == pytest.approx(8, rel=0.1)
    assert reading.prompt_tokens_per_s == pytest.approx(10, rel=0.1)
    assert reading.kv_use == 0.25
    assert bench.cached_tokens == 2 * bench.finished
    more = bench.measure(32, PACE, 1e9, threading.Event())
    assert more is not None
    assert more.output_tokens_per_s == pytest.approx(32, rel=0.1)
    assert engine.most == 32


def test_engines_that_share_a_card_are_counted_together() -> None:
    reading = bench_of([SteadyEngine(), SteadyEngine()]).measure(8, PACE, 1e9, threading.Event())
    assert reading is not None
    assert reading.output_tokens_per_s == pytest.approx(16, rel=0.1)


def test_rows_that_are_replaced_late_are_made_up_for() -> None:
    class LateEngine(SteadyEngine):
        """Tells of a row's end two steps later, as through a pipe."""

        def __init__(self) -> None:
            super().__init__()
            self.told: list[list[Outcome]] = [[], []]

        def step(self, timeout_s: float) -> list[Outcome]:
            self.told.append(super().step(timeout_s))
            return self.told.pop(0)

    bench = bench_of([LateEngine()])
    first = bench.measure(16, Pace(1.0, 2.0), 1e9, threading.Event())
    later = bench.measure(16, Pace(400.0, 2.0), 1e9, threading.Event())
    assert first is not None
    assert later is not None
    assert first.output_tokens_per_s < 13
    assert later.output_tokens_per_s > first.output_tokens_per_s + 1.5


@pytest.mark.parametrize("deadline", [0.0, 5.0])
def test_without_a_whole_turn_by_the_deadline_there_is_no_reading(deadline: float) -> None:
    assert bench_of([SteadyEngine()]).measure(64, PACE, deadline, threading.Event()) is None


def test_the_deadline_ends_a_long_measurement_with_what_there_is() -> None:
    reading = bench_of([SteadyEngine()]).measure(8, Pace(1e6, 2.0), 60.0, threading.Event())
    assert reading is not None
    assert reading.seconds < 70


def test_a_stop_ends_it() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        bench_of([SteadyEngine()]).measure(8, PACE, 1e9, stop)


def test_a_death_ends_it_without_a_second_try() -> None:
    engine = SteadyEngine()
    engine.dies_at = 7
    with pytest.raises(EngineError, match="died"):
        bench_of([engine]).measure(8, PACE, 1e9, threading.Event())


def test_an_engine_that_answers_nothing_is_found_out() -> None:
    with pytest.raises(EngineError, match="answers no row"):
        bench_of([FakeEngine()], "not json").measure(8, PACE, 1e9, threading.Event())


def test_engines_that_did_start_are_stopped_when_another_does_not(tmp_path: Path) -> None:
    maker = BenchMaker("batchwright.engines.fake:FakeEngine", SETTINGS, tmp_path, 60.0, 60.0, 60.0)
    with pytest.raises(JobError, match="no such option"):
        maker.start(8, {"nonsense": 1}, 2, stream())
    started = maker.start(8, {}, 2, stream())
    assert started.info.name == "fake"
    assert started.bench.measure(8, Pace(0.01, 1.0), 1e9, threading.Event()) is not None
    started.bench.stop()
