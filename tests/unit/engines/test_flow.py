"""How many rows an engine is given, tried on a simulated scheduler with a small KV pool."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.core.ports import EngineGauges
from batchwright.core.records import Request
from batchwright.engines.flow import LEAST_AHEAD, Flow, ahead_of

STEPS_PER_LOOK = 10
RESERVE = 0.05


@dataclass
class Row:
    prompt: int
    output: int
    max_tokens: int
    made: int = 0
    resident: int = 0

    def request(self) -> Request:
        return Request(0, [1] * self.prompt, self.max_tokens, "{}")


class Pool:
    """Runs rows as vLLM does: first come first served, whole prompts, the last one is preempted."""

    def __init__(self, max_num_seqs: int, kv_tokens: int, reserve: float = RESERVE) -> None:
        self.max_num_seqs = max_num_seqs
        self.kv_tokens = kv_tokens
        self.kept_free = reserve * kv_tokens
        self.waiting: deque[Row] = deque()
        self.running: list[Row] = []
        self.steps = self.preemptions = 0

    @property
    def used(self) -> int:
        return sum(row.resident for row in self.running)

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
        preempted = used > self.kv_tokens
        while used > self.kv_tokens:
            row = self.running.pop()
            used -= row.resident + 1
            row.resident = 0
            self.waiting.appendleft(row)
            self.preemptions += 1
        for row in self.running:
            row.made += 1
            row.resident += 1
        while self.waiting and len(self.running) < self.max_num_seqs and not preempted:
            need = self.waiting[0].prompt + self.waiting[0].made
            if used + need > self.kv_tokens - self.kept_free:
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
    steps: int
    preemptions: int
    most_waiting: int
    caps: list[int]


def simulate(pool: Pool, rows: list[Row]) -> Report:
    """Feed a pool as the supervisor does, until all rows are done."""
    flow = Flow(pool.max_num_seqs, pool.max_num_seqs + ahead_of(pool.max_num_seqs), pool.kv_tokens)
    flow.begin([row.request() for row in rows[: pool.max_num_seqs]])
    left = deque(rows)
    held = wanted = most_waiting = 0
    caps = []
    while left or held:
        if pool.steps % STEPS_PER_LOOK == 0:
            wanted = flow.look(pool.gauges())
            caps.append(flow.cap)
            most_waiting = max(most_waiting, len(pool.waiting))
        while left and held < wanted:
            pool.waiting.append(left.popleft())
            held += 1
        held -= len(pool.step())
    return Report(pool.steps, pool.preemptions, most_waiting, caps)


def all_at_once(pool: Pool, rows: list[Row]) -> Report:
    """Give the pool every row before its first step."""
    pool.waiting.extend(rows)
    left = len(rows)
    while left:
        left -= len(pool.step())
    return Report(pool.steps, pool.preemptions, len(rows), [])


def rows_of(
    draw: Callable[[random.Random], int], num_rows: int, *, prompt: int = 100, max_tokens: int
) -> list[Row]:
    rng = random.Random(0)
    return [Row(prompt, draw(rng), max_tokens) for _ in range(num_rows)]


def long_tail(rng: random.Random) -> int:
    return min(2000, int(rng.lognormvariate(5.5, 0.8)))


@pytest.mark.parametrize(
    ("draw", "max_tokens", "kv_tokens"),
    [
        (lambda rng: rng.randint(200, 400), 400, 30_000),
        (long_tail, 2000, 60_000),
        (lambda rng: rng.randint(20, 60), 4096, 60_000),  # a cap that nobody reaches
        (lambda rng: 8, 8, 400_000),
    ],
)
def test_the_engine_runs_as_many_rows_as_if_it_had_all(
    draw: Callable[[random.Random], int], max_tokens: int, kv_tokens: int
) -> None:
    one, all_rows = (rows_of(draw, 800, max_tokens=max_tokens) for _ in range(2))
    fed = simulate(Pool(256, kv_tokens), one)
    full = all_at_once(Pool(256, kv_tokens), all_rows)
    assert fed.steps <= 1.02 * full.steps + 2 * STEPS_PER_LOOK
    assert fed.most_waiting <= 256 + ahead_of(256)


def test_few_rows_wait_in_an_engine_that_is_full() -> None:
    rows = rows_of(long_tail, 800, max_tokens=2000)
    report = simulate(Pool(256, 20_000), rows)
    assert report.most_waiting < 160, "of 800, and some of them are preempted ones"
    middle = report.caps[len(report.caps) // 4 : len(report.caps) // 2]
    assert max(middle) < 100, "what the pool has room for"


def test_the_reserve_and_not_a_cap_spares_preemptions() -> None:
    """Why the engine is started with a watermark: without, rows come in on their prompts alone."""
    without, reserve = (
        simulate(Pool(256, 60_000, reserve), rows_of(long_tail, 800, max_tokens=2000))
        for reserve in (0.0, RESERVE)
    )
    assert without.preemptions > 500
    assert reserve.preemptions < 0.3 * without.preemptions


def test_an_engine_that_does_not_tell_its_pool_gets_all_it_may_run() -> None:
    flow = Flow(64, 80, 0)
    flow.begin([Request(0, [1], 10**6, "{}")])
    assert flow.look(EngineGauges()) == 80
    assert flow.cap == 64


def test_the_first_rows_are_guessed_to_be_in_the_middle_of_their_answers() -> None:
    flow = Flow(1000, 1250, 100_000)
    assert not flow.begun
    flow.begin([Request(0, [1] * 300, 4000, "{}")] * 50)
    assert flow.begun
    assert flow.running == 100_000 // (300 + 1000)
    assert flow.look(EngineGauges()) == 2 * flow.running + LEAST_AHEAD
    assert flow.cap == 1000, "nothing says yet that there is no room"


def test_a_row_larger_than_the_pool_is_sent() -> None:
    flow = Flow(8, 24, 100)
    flow.begin([Request(0, [1] * 300, 4000, "{}")])
    assert flow.look(EngineGauges()) == 2 + LEAST_AHEAD


def test_rows_that_all_end_in_one_step_are_replaced_at_once() -> None:
    flow = Flow(1024, 1280, 2_000_000)
    flow.begin([Request(0, [1] * 128, 128, "{}")])
    for running, waiting in [(0, 0), (1024, 256), (256, 0), (1024, 256)]:
        kv_use = running * 200 / 2_000_000
        assert flow.look(EngineGauges(running=running, waiting=waiting, kv_use=kv_use)) == 1280


def test_a_full_engine_gets_what_it_runs_and_a_quarter() -> None:
    flow = Flow(1024, 1280, 100_000)
    flow.begin([Request(0, [1], 1, "{}")])
    assert flow.look(EngineGauges(running=100, waiting=40, kv_use=0.96)) == 125
    assert flow.cap == 100
    assert flow.look(EngineGauges(running=40, waiting=40, kv_use=0.75)) == 56, "still full"
    assert flow.look(EngineGauges(running=40, waiting=0, kv_use=0.75)) == 96
    assert flow.cap == 1024


readings = st.builds(
    EngineGauges, running=st.integers(0, 64), waiting=st.integers(0, 80), kv_use=st.floats(0, 1)
)


@given(st.integers(1, 64), st.integers(0, 10**6), st.lists(readings, max_size=20))
def test_an_engine_always_gets_rows_and_never_too_many(
    max_num_seqs: int, kv_tokens: int, looks: list[EngineGauges]
) -> None:
    most = max_num_seqs + ahead_of(max_num_seqs)
    flow = Flow(max_num_seqs, most, kv_tokens)
    flow.begin([Request(0, [1] * 10, 100, "{}")])
    for gauges in looks:
        wanted = flow.look(replace(gauges, running=min(gauges.running, max_num_seqs)))
        assert flow.running < wanted <= most
        assert 1 <= flow.cap <= max_num_seqs
