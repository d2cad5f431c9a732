"""The cap of rows in the engine, tried on a simulated scheduler with a small KV pool."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from batchwright.core.ports import EngineGauges
from batchwright.engines.feeder import FeedPolicy
from batchwright.engines.flow import Flow, LiveRow, expected_resident, guess_output

STEPS_PER_LOOK = 100  # of 20 ms
MARGIN = 64


@dataclass
class Row:
    prompt: int
    output: int
    max_tokens: int
    made: int = 0
    sent_at: int = 0
    resident: int = 0


class Pool:
    """Runs rows as vLLM does: first come first served, whole prompts, the last one is preempted."""

    def __init__(self, max_num_seqs: int, kv_tokens: int, shared: int = 0) -> None:
        self.max_num_seqs = max_num_seqs
        self.kv_tokens = kv_tokens
        self.shared = shared  # tokens at the start of every prompt that are in the pool once
        self.waiting: deque[Row] = deque()
        self.running: list[Row] = []
        self.steps = self.preemptions = 0

    @property
    def used(self) -> int:
        return sum(row.resident for row in self.running) + (self.shared if self.running else 0)

    def gauges(self) -> EngineGauges:
        return EngineGauges(
            running=len(self.running),
            waiting=len(self.waiting),
            kv_use=self.used / self.kv_tokens,
            preemptions=self.preemptions,
            steps=self.steps,
        )

    def step(self) -> list[Row]:
        self.steps += 1
        used = self.used + len(self.running)
        while used > self.kv_tokens:
            row = self.running.pop()
            used -= row.resident + 1
            row.resident = 0
            self.waiting.appendleft(row)
            self.preemptions += 1
        for row in self.running:
            row.made += 1
            row.resident += 1
        while self.waiting and len(self.running) < self.max_num_seqs:
            need = self.waiting[0].prompt - self.shared + self.waiting[0].made
            if used + need > self.kv_tokens:
                break
            row = self.waiting.popleft()
            row.resident = need
            used += need
            self.running.append(row)
        done = [row for row in self.running if row.made >= row.output]
        self.running = [row for row in self.running if row.made < row.output]
        return done


@dataclass
class Report:
    caps: list[int]
    steps: int
    preemptions: int
    uses: list[float]


def simulate(pool: Pool, rows: Iterator[Row], num_rows: int, *, controlled: bool = True) -> Report:
    """Feed a pool as the supervisor does, until all rows are done."""
    full = FeedPolicy(pool.max_num_seqs, MARGIN, 10**9)
    policy = full
    flow = Flow(pool.max_num_seqs, pool.kv_tokens if controlled else 0)
    report = Report([], 0, 0, [])
    left = num_rows
    live: list[Row] = []
    while left or live:
        if pool.steps % STEPS_PER_LOOK == 0:
            seen = [
                LiveRow(row.prompt, row.max_tokens, pool.steps - row.sent_at) for row in live
            ] or [LiveRow(row.prompt, row.max_tokens, 0) for row in [next(rows)]]
            policy = full.capped(flow.look(pool.gauges(), seen))
            report.caps.append(policy.max_num_seqs)
            report.uses.append(pool.gauges().kv_use)
        while left and len(live) < policy.max_rows:
            row = next(rows)
            row.sent_at = pool.steps
            live.append(row)
            pool.waiting.append(row)
            left -= 1
        for row in pool.step():
            live.remove(row)
            flow.finish(row.prompt, row.output)
    report.steps, report.preemptions = pool.steps, pool.preemptions
    return report


def rows_of(draw: Callable[[random.Random], int], prompt: int, max_tokens: int) -> Iterator[Row]:
    rng = random.Random(0)
    while True:
        yield Row(prompt, draw(rng), max_tokens)


def rows_to_compare(
    draw: Callable[[random.Random], int], max_tokens: int, kv_tokens: int, num_rows: int
) -> tuple[Report, Report]:
    """The same rows without and with the cap."""
    free, capped = (
        simulate(
            Pool(256, kv_tokens), rows_of(draw, 100, max_tokens), num_rows, controlled=controlled
        )
        for controlled in (False, True)
    )
    return free, capped


def test_short_rows_with_room_for_all_run_all_at_once() -> None:
    report = simulate(Pool(1024, 400_000), rows_of(lambda rng: 8, 150, 8), 4000)
    assert set(report.caps) == {1024}


def test_an_engine_that_does_not_tell_its_pool_has_no_cap() -> None:
    flow = Flow(64, 0)
    assert flow.look(EngineGauges(kv_use=1.0, preemptions=100), [LiveRow(10**6, 10, 0)] * 64) == 64
    assert not flow.bound


def test_nothing_in_flight_changes_nothing() -> None:
    assert Flow(64, 1000).look(EngineGauges(), []) == 64


def test_the_first_cap_is_what_the_pool_holds_of_the_rows_that_wait() -> None:
    flow = Flow(1000, 100_000)
    assert flow.look(EngineGauges(), [LiveRow(300, 200, 0)] * 50) == int(0.88 * 100_000 / 400)
    assert flow.bound
    assert Flow(1000, 100_000).look(EngineGauges(), [LiveRow(300, 4000, 0)]) == int(88_000 / 1300)


def test_a_small_pool_is_kept_full_without_preempting() -> None:
    free, capped = rows_to_compare(lambda rng: rng.randint(200, 400), 400, 30_000, 1000)
    assert free.preemptions > 1000
    assert capped.preemptions < 0.1 * free.preemptions
    settled = capped.uses[5:-5]
    assert sum(settled) / len(settled) > 0.8
    assert capped.steps < 1.3 * free.steps, "and preempted rows cost nothing in this simulation"


def test_a_long_tail_of_outputs_is_foreseen() -> None:
    free, capped = rows_to_compare(
        lambda rng: min(2000, int(rng.lognormvariate(5.5, 0.8))), 2000, 60_000, 1500
    )
    assert capped.preemptions < 0.3 * free.preemptions
    settled = capped.uses[5:-10]
    assert sum(settled) / len(settled) > 0.75


def test_a_cap_that_nobody_reaches_does_not_keep_the_engine_empty() -> None:
    """`max_tokens` is 4,096 and answers have 40: known from the first rows that finish."""
    _, capped = rows_to_compare(lambda rng: rng.randint(20, 60), 4096, 60_000, 3000)
    assert capped.caps[0] < 64
    assert set(capped.caps[1:]) == {256}


def test_shared_beginnings_of_prompts_leave_room_for_more_rows() -> None:
    pool = Pool(128, 40_000, shared=900)
    report = simulate(pool, rows_of(lambda rng: rng.randint(50, 100), 1000, 100), 1000)
    assert report.caps[0] < 40
    assert min(report.caps[2:]) >= 120
    assert report.preemptions == 0


def test_early_finishers_do_not_stand_for_all() -> None:
    finished = [(100, 20)] * 80
    live = [LiveRow(100, 1000, 25)] * 20
    assert expected_resident(finished, []) == 110
    # A fifth of all rows go on, to 500 tokens by guess: E[o] = 116 and E[o^2] / 2 = 25,160.
    assert expected_resident(finished, live) == pytest.approx(100 + 25_160 / 116, rel=0.01)
    assert expected_resident([(100, 400)] * 50, []) == 300


def test_a_single_row_that_outlives_the_rest_weighs_little() -> None:
    finished = [(100, 40)] * 99
    assert expected_resident(finished, [LiveRow(100, 4096, 60)]) < 125


def test_preemptions_shrink_the_cap_and_a_new_engine_counts_them_anew() -> None:
    flow = Flow(1000, 100_000)
    live = [LiveRow(300, 200, 0)] * 220
    before = flow.look(EngineGauges(), live)
    after = flow.look(EngineGauges(preemptions=50), live)
    assert after == pytest.approx(0.95 * before, abs=1)
    flow.restart()
    assert flow.look(EngineGauges(preemptions=0), live) == pytest.approx(after, abs=1)


@pytest.mark.parametrize(
    ("max_tokens", "guess"), [(0, 1), (8, 8), (256, 256), (400, 256), (4096, 2048)]
)
def test_the_guess_is_the_planners(max_tokens: int, guess: int) -> None:
    assert guess_output(max_tokens) == guess


def test_a_pool_that_is_nearly_empty_never_holds_rows_back() -> None:
    """Rows that waited look older than they are, so what they share seems to change from wave to wave."""
    flow = Flow(max_num_seqs=1024, kv_tokens=2_000_000)
    caps = []
    for share, ahead in [(0.6, 0), (1.0, 256), (0.7, 0), (1.1, 256), (1.0, 256)]:
        live = [LiveRow(128, 128, 64)] * 1024 + [LiveRow(128, 128, 0)] * ahead
        kv_use = share * 1024 * (128 + 64) / 2_000_000
        caps.append(flow.look(EngineGauges(running=1024, waiting=ahead, kv_use=kv_use), live))
    assert caps == [1024] * 5
