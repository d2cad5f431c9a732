"""Hidden lengths follow from prompts alone, and a row ends at its length whatever the batch does."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from benchmarks.throughput.__main__ import environment_of, with_true_lengths
from benchmarks.throughput.lengths import Endings, Lengths, Tracked
from benchmarks.throughput.words import Words
from benchmarks.throughput.workloads import CPU, GPU, make_workload, reveal

LAW = Lengths(900.0, 0.9, 8_192)


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [rng.choices(range(100_000), k=300) for _ in range(count)]


def test_a_length_depends_on_every_token_and_on_the_seed() -> None:
    (prompt,) = prompts(1)
    assert LAW.of(prompt) == LAW.of(tuple(prompt))
    others = [[*prompt[:n], prompt[n] ^ 1, *prompt[n + 1 :]] for n in range(0, 300, 10)]
    assert len({LAW.of(one) for one in others} - {LAW.of(prompt)}) > 25
    assert replace(LAW, seed=1).of(prompt) != LAW.of(prompt)


def test_lengths_are_lognormal_and_within_the_cap() -> None:
    found = sorted(LAW.of(one) for one in prompts(2_000))
    assert median(found) == pytest.approx(900, rel=0.08)
    # One sigma above the median: exp(0.9) times as long.
    assert found[round(0.8413 * len(found))] == pytest.approx(900 * 2.46, rel=0.1)
    assert max(LAW.of(one) for one in prompts(200)) <= 8_192
    assert {replace(LAW, longest=5).of(one) for one in prompts(200)} <= {1, 2, 3, 4, 5}


def test_the_law_goes_to_another_process_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = make_workload("W5-hidden", GPU, seed=7)
    for name, value in environment_of(workload).items():
        monkeypatch.setenv(name, value)
    assert Lengths.from_environment() == workload.hidden == replace(LAW, seed=7)
    assert environment_of(make_workload("W5", GPU)) == {}


def test_systems_are_told_a_cap_while_we_know_the_length(tiny_model: Path) -> None:
    workload = make_workload("W7-hidden", CPU, scale=20)
    known = with_true_lengths(workload, Words(tiny_model), seed=0)
    assert {known.told_max_tokens(row) for row in known.rows} == {CPU.longest_output}
    lengths = [row.max_tokens for row in known.rows]
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 10
    assert known.longest == 300 + CPU.longest_output
    assert sorted(row.id for row in known.rows) == sorted(row.id for row in workload.rows)


def test_known_lengths_stay_as_they_are() -> None:
    workload = make_workload("W5", CPU, scale=10)
    assert reveal(workload, {}) is workload
    assert workload.told_max_tokens(workload.rows[0]) == workload.rows[0].max_tokens


class Batch:
    """A batch as vLLM keeps one: rows come, pause, move, and get at most one token a step."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.endings = Endings()
        self.waiting = [
            (number, self.chance.choice([1, 2, 3, 17, 40]), list[int]()) for number in range(60)
        ]
        self.running: list[tuple[int, int, list[int]]] = []
        self.ended: dict[int, int] = {}

    def change(self) -> None:
        """Some leave in the middle, some come in, and all may change places."""
        for _ in range(self.chance.choice([0, 0, 1])):
            if self.running:
                self.waiting.append(self.running.pop(self.chance.randrange(len(self.running))))
        while self.waiting and len(self.running) < 8:
            self.running.append(self.waiting.pop(0))
        self.chance.shuffle(self.running)

    def tell(self) -> None:
        tracked = {id(one.output): one for one in self.endings.rows.values()}
        self.endings.rows.clear()
        for index, (_, length, output) in enumerate(self.running):
            known = tracked.get(id(output)) or Tracked(length, output, 2)
            self.endings.rows[index] = known
        self.endings.moved()

    def step(self) -> None:
        ending = {row.index for row in self.endings.next_step()}
        for index, (number, _, output) in enumerate(self.running):
            if self.chance.random() < 0.3:
                continue  # only a part of its prompt was computed
            assert len(output) < 41
            output.append(0)
            if index in ending:
                self.ended[number] = len(output)
        self.running = [one for one in self.running if one[0] not in self.ended]


@pytest.mark.parametrize("seed", range(5))
def test_every_row_ends_at_exactly_its_length(seed: int) -> None:
    batch = Batch(seed)
    lengths = {number: length for number, length, _ in batch.waiting}
    for _ in range(3_000):
        batch.change()
        batch.tell()
        batch.step()
    assert batch.ended == lengths


def test_a_row_that_is_over_is_not_ended_again_and_is_forgotten() -> None:
    """With asynchronous scheduling an engine makes a step more before it sees that a row is over."""
    endings, output = Endings(), [0]
    endings.rows[3] = Tracked(2, output, 2)
    endings.moved()
    assert [row.index for row in endings.next_step()] == [3]
    output.append(2)
    assert endings.next_step() == []
    assert endings.next_step() == []
    assert not endings._due
