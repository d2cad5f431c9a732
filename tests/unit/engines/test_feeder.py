"""The feeder: how full the engine is kept, and that no row is lost when it dies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.core.errors import EngineDied, EngineError, JobError
from batchwright.core.outcomes import Outcome
from batchwright.core.ports import EngineGauges, EngineInfo, EngineSettings
from batchwright.core.records import Request
from batchwright.engines.feeder import FeedPolicy, Supervisor


class World:
    """What survives an engine's death: time, how often it started, and what goes wrong."""

    def __init__(self, **faults: object) -> None:
        self.now = 0.0
        self.starts = self.preloads = 0
        self.held = self.most_held = 0  # rows in the engine after the last were sent
        self.killers: set[int] = set()
        self.hanging: set[int] = set()
        self.random_deaths = 0
        self.kv_tokens = 0
        self.start_errors: list[Exception] = []
        self.__dict__.update(faults)


class ScriptedEngine:
    """Finishes two rows in a step, or dies."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rows: dict[int, Request] = {}

    def preload(self, settings: EngineSettings) -> None:
        self.world.preloads += 1

    def start(self, settings: EngineSettings) -> EngineInfo:
        self.world.starts += 1
        if self.world.start_errors:
            raise self.world.start_errors.pop(0)
        return EngineInfo("scripted", "1", "none", self.world.kv_tokens)

    def submit(self, requests: Sequence[Request]) -> None:
        self.rows.update((request.row, request) for request in requests)
        self.world.held = len(self.rows)
        self.world.most_held = max(self.world.most_held, len(self.rows))

    def abort(self, rows: Iterable[int]) -> None:
        for row in rows:
            self.rows.pop(row, None)

    def step(self, timeout_s: float) -> list[Outcome]:
        self.world.now += 1.0
        if self.world.killers & set(self.rows):
            raise EngineDied("killed")
        if self.world.random_deaths and self.rows:
            self.world.random_deaths -= 1
            raise EngineDied("bad luck")
        done = [row for row in self.rows if row not in self.world.hanging][:2]
        for row in done:
            del self.rows[row]
        return [Outcome(row, [row]) for row in done]

    def gauges(self) -> EngineGauges:
        held, room = len(self.rows), self.world.kv_tokens // 4 or 10**9
        running = min(held, room)
        return EngineGauges(running=running, waiting=held - running, kv_use=running / room)

    def stop(self) -> None:
        self.rows.clear()


def supervised(world: World, *, max_num_seqs: int = 4, **arguments: float) -> Supervisor:
    settings = EngineSettings("scripted", "", max_num_seqs, 100)
    supervisor = Supervisor(
        lambda: ScriptedEngine(world),
        settings,
        monotonic=lambda: world.now,
        **arguments,  # type: ignore[arg-type]
    )
    supervisor.start()
    return supervisor


def drive(supervisor: Supervisor, count: int) -> dict[int, Outcome]:
    """Feed rows as a worker does, and check that each comes out once."""
    waiting = [Request(row, [1, 2, 3], 5, "{}") for row in range(count)]
    outcomes: dict[int, Outcome] = {}
    for _ in range(100 * count + 100):
        room = supervisor.room()
        supervisor.submit(waiting[:room])
        del waiting[:room]
        for outcome in supervisor.step(0.0):
            assert outcome.row not in outcomes
            outcomes[outcome.row] = outcome
        if not waiting and not supervisor.in_flight:
            break
    assert sorted(outcomes) == list(range(count))
    return outcomes


def test_without_deaths_every_row_is_sent_once() -> None:
    world = World()
    outcomes = drive(supervised(world), 100)
    assert {(outcome.error_code, outcome.attempts) for outcome in outcomes.values()} == {(None, 1)}
    assert world.starts == 1
    assert world.most_held == 4 + 16


@given(st.integers(1, 60), st.sets(st.integers(0, 59), max_size=2), st.integers(0, 3))
def test_killers_fail_and_everybody_else_finishes(
    count: int, chosen: set[int], random_deaths: int
) -> None:
    killers = chosen & set(range(count))
    world = World(killers=killers, random_deaths=random_deaths)
    supervisor = supervised(world, max_restarts=60)
    outcomes = drive(supervisor, count)
    failed = {row for row, outcome in outcomes.items() if outcome.error_code == "engine_killed"}
    # Random deaths may hit an innocent row that happens to run alone, twice.
    assert killers <= failed
    assert random_deaths > 1 or failed == killers
    assert world.starts == 1 + supervisor.restarts
    assert all(outcomes[row].attempts >= 2 for row in killers)


def test_the_first_death_accuses_nobody() -> None:
    world = World(random_deaths=1)
    supervisor = supervised(world)
    outcomes = drive(supervisor, 30)
    assert supervisor.restarts == 1
    assert supervisor.last_death == "bad luck"
    assert [outcomes[row].attempts for row in (0, 19, 20, 29)] == [2, 2, 1, 1]


def test_no_new_rows_while_a_killer_is_looked_for() -> None:
    world = World(killers={2})
    supervisor = supervised(world)
    supervisor.submit([Request(row, [1], 5, "{}") for row in range(4)])
    supervisor.step(0.0)
    assert supervisor.room() == 0
    supervisor.submit([Request(9, [1], 5, "{}")])  # it waits
    while 2 not in {outcome.row for outcome in supervisor.step(0.0)}:
        assert supervisor.in_flight
    world.killers.clear()
    while supervisor.in_flight:
        supervisor.step(0.0)
    assert supervisor.room() == 20


def test_an_engine_that_only_dies_ends_the_run() -> None:
    supervisor = supervised(World(random_deaths=1000), max_restarts=5)
    with pytest.raises(EngineError, match="died 6 times and finished no row") as caught:
        drive(supervisor, 40)
    assert not isinstance(caught.value, EngineDied)
    assert supervisor.restarts == 5


def test_an_engine_that_was_preloaded_is_the_one_that_starts() -> None:
    world, made = World(random_deaths=1), []

    def make() -> ScriptedEngine:
        made.append(ScriptedEngine(world))
        return made[-1]

    supervisor = Supervisor(make, EngineSettings("scripted", "", 4, 100), monotonic=lambda: 0.0)
    supervisor.preload()
    assert (len(made), world.preloads, world.starts) == (1, 1, 0)
    supervisor.start()
    assert (len(made), world.starts) == (1, 1)
    drive(supervisor, 10)
    assert (len(made), world.preloads, world.starts) == (2, 1, 2), "one anew after the death"


def test_a_first_start_that_fails_is_not_repeated() -> None:
    world = World(start_errors=[EngineError("no GPU")])
    with pytest.raises(EngineError, match="no GPU"):
        supervised(world)
    assert world.starts == 1


def test_a_restart_is_tried_again_but_not_for_a_job_error() -> None:
    world = World(random_deaths=1)
    supervisor = supervised(world)
    world.start_errors = [EngineError("memory still taken"), EngineError("memory still taken")]
    drive(supervisor, 5)
    assert world.starts == 4
    world.random_deaths = 1
    world.start_errors = [JobError("wrong option")]
    supervisor.submit([Request(0, [1], 5, "{}")])
    with pytest.raises(JobError):
        supervisor.step(0.0)
    assert world.starts == 5


def test_rows_that_take_too_long_fail_and_the_others_go_on() -> None:
    supervisor = supervised(World(hanging={1}), row_timeout_s=15.0)
    outcomes = drive(supervisor, 30)
    assert {row for row, outcome in outcomes.items() if outcome.error_code} == {1}
    assert outcomes[1].error_code == "timeout"
    assert "15 s" in str(outcomes[1].error)


def test_the_oldest_rows_and_their_age() -> None:
    world = World(hanging={1, 2})
    supervisor = supervised(world)
    supervisor.submit([Request(row, [1], 5, "{}") for row in range(6)])
    for _ in range(4):
        supervisor.step(0.0)
    assert supervisor.oldest() == [(1, 4.0), (2, 4.0)]
    assert supervisor.oldest(1) == [(1, 4.0)]


def test_stop_may_be_called_twice() -> None:
    supervisor = supervised(World())
    supervisor.stop()
    supervisor.stop()
    with pytest.raises(EngineError, match="not started"):
        supervisor.gauges()


def test_rows_that_the_pool_has_no_room_for_stay_out_of_the_engine() -> None:
    world = World(kv_tokens=63)
    supervisor = supervised(world, max_num_seqs=100)
    supervisor.submit([Request(row, [1, 2, 3], 5, "{}") for row in range(100)])
    supervisor.step(0.0)
    # By guess a row is 3 prompt tokens and half of 5: the pool holds 11. As many again may come.
    assert world.most_held == 2 * 11 + 16
    held = []
    while supervisor.in_flight > 31:
        supervisor.step(0.0)
        held.append(world.held)
    assert set(held[5:-1]) == {15 + 16}, "what runs, and a few"
    assert supervisor.cap == 15
    roomy = World(kv_tokens=10_000)
    drive(supervised(roomy, max_num_seqs=100), 300)
    assert roomy.most_held == 100 + 25


def test_what_is_known_of_the_room_survives_a_death_of_the_engine() -> None:
    world = World(kv_tokens=63)
    supervisor = supervised(world, max_num_seqs=100)
    supervisor.submit([Request(row, [1, 2, 3], 5, "{}") for row in range(200)])
    for _ in range(10):
        supervisor.step(0.0)
    world.random_deaths, world.most_held = 1, 0
    while supervisor.in_flight:
        supervisor.step(0.0)
    assert supervisor.restarts == 1
    assert world.most_held <= 2 * 15 + 16


def test_the_policy_of_a_moment() -> None:
    full = FeedPolicy(1024, 256, 3000)
    assert full.for_now(1024, 1280) == full
    assert full.for_now(100, 125) == FeedPolicy(100, 25, 3000)


def policy(rows: int = 4, margin: int = 3, tokens: int = 100) -> FeedPolicy:
    return FeedPolicy(rows, margin, tokens)


def test_the_policy_of_settings() -> None:
    options = {"max_num_batched_tokens": 1000}
    made = FeedPolicy.of(EngineSettings("vllm", "m", 1024, 100, options=options))
    assert made == FeedPolicy(1024, 256, 3000)
    assert FeedPolicy.of(EngineSettings("vllm", "m", 8, 100)).margin == 16


@pytest.mark.parametrize(
    ("held", "waiting", "count"),
    [
        ([], [], 0),
        ([], [10**9], 1),  # never less than one
        ([], [10**9] * 9, 4),  # every slot may be filled, whatever the prompts' lengths
        ([], [10] * 9, 7),
        ([10] * 4, [40, 50, 60], 2),
        ([10] * 4 + [90], [40], 0),
        ([10] * 7, [1], 0),
        ([10] * 9, [1], 0),
    ],
)
def test_how_many_to_send(held: list[int], waiting: list[int], count: int) -> None:
    assert policy().num_to_send(len(held), sum(held[policy().max_num_seqs :]), waiting) == count


@given(st.lists(st.integers(1, 500), max_size=12), st.lists(st.integers(1, 500), max_size=12))
def test_the_policy_keeps_its_limits(held: list[int], waiting: list[int]) -> None:
    limits = policy()
    count = limits.num_to_send(len(held), sum(held[limits.max_num_seqs :]), waiting)
    total = held + waiting[:count]
    assert count == 0 or len(total) <= limits.max_rows
    assert count == 0 or sum(total[limits.max_num_seqs :]) <= limits.max_tokens_ahead
    assert count >= min(len(waiting), limits.max_num_seqs - len(held))
