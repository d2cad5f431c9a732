"""The simulation of vLLM's scheduler: rows come out whole, and a reserve spares preemptions."""

from __future__ import annotations

from benchmarks.scheduler import (
    Engine,
    Row,
    Setup,
    Shape,
    peak_tokens,
    run_all,
    run_fed,
    run_knowing,
)

SHAPE = Shape(120, 50, 120, 0.8, 600)


def test_a_row_alone_takes_a_step_for_each_token() -> None:
    engine = run_all(Engine(Setup(1_600, 8)), [Row(0, 100, 30, 30)])
    assert (engine.steps, engine.preemptions, engine.recomputed) == (30, 0, 0)
    assert engine.cache.num_free == 100


def test_a_prompt_larger_than_a_step_takes_several() -> None:
    engine = run_all(Engine(Setup(1_600, 8, max_num_batched_tokens=40)), [Row(0, 100, 5, 5)])
    assert engine.steps == 3 + 4


def test_who_came_last_gives_way_and_finds_its_beginning_again() -> None:
    # Two rows of 8 blocks in a pool of 12: the second one has to wait until the first is done.
    rows = [Row(number, 64, 64, 64) for number in range(2)]
    engine = run_all(Engine(Setup(12 * 16, 8)), rows)
    assert engine.preemptions == 1
    assert [row.made for row in rows] == [64, 64]
    # 6 of its blocks were computed; the first row took over 2 of them at most.
    assert 0 < engine.recomputed <= 64 + 32


def test_a_reserve_spares_preemptions_and_time() -> None:
    plain = run_all(Engine(Setup(6_400, 64)), SHAPE.make())
    spared = run_all(Engine(Setup(6_400, 64, watermark=0.05)), SHAPE.make())
    assert spared.preemptions < plain.preemptions
    assert spared.seconds < plain.seconds


def test_fed_row_by_row_the_engine_is_as_full() -> None:
    setup = Setup(6_400, 64, watermark=0.05)
    whole, fed = run_all(Engine(setup), SHAPE.make()), run_fed(Engine(setup), SHAPE.make())
    assert abs(fed.steps - whole.steps) <= 0.02 * whole.steps


def test_who_knows_every_length_preempts_nobody() -> None:
    known = run_knowing(Engine(Setup(6_400, 64)), SHAPE.make())
    reserve = run_all(Engine(Setup(6_400, 64, watermark=0.05)), SHAPE.make())
    assert known.preemptions == 0
    assert known.seconds < 1.05 * reserve.seconds


def test_the_peak_of_rows_is_when_one_of_them_ends() -> None:
    short, long = Row(0, 100, 10, 10), Row(1, 50, 30, 30)
    assert peak_tokens([short, long]) == 110 + 60
    assert peak_tokens([long]) == 80
