"""In which order runs are made, and which of them the time allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# A first guess, before anything was measured: an engine's start on a GPU, and some work.
FIRST_GUESS_S = 90.0


class Turn(NamedTuple):
    """One run to make."""

    workload: str
    system: str
    repeat: int


def rotated(workloads: Sequence[str], systems: Sequence[str], repeats: int) -> list[Turn]:
    """Every repeat begins with another system, so that a drift of the machine hits all alike.

    The first repeat of each workload keeps the given order: a tuned system is set up like a run
    of batchwright that has to be there by then.
    """
    turns = []
    for repeat in range(repeats):
        shift = repeat % len(systems)
        order = [*systems[shift:], *systems[:shift]]
        for workload in workloads:
            turns += [Turn(workload, system, repeat) for system in order]
    return turns


def by_system(workloads: Sequence[str], systems: Sequence[str], repeats: int) -> list[Turn]:
    """All runs of a system together, so that they can share an engine."""
    return [
        Turn(workload, system, repeat)
        for system in systems
        for repeat in range(repeats)
        for workload in workloads
    ]


class Budget:
    """Seconds for the whole benchmark, shared out among systems that take turns in blocks.

    Args:
        total_s: for everything; None for no limit.
        blocks: how many blocks the time is for; 1 if systems alternate.
    """

    def __init__(self, total_s: float | None, blocks: int = 1) -> None:
        self._total_s = total_s
        self._blocks = blocks
        self._took_s: dict[tuple[str, str], float] = {}
        self._block_end_s = 0.0
        self.begin_block(0.0)

    def begin_block(self, now_s: float) -> None:
        """A block gets an equal share of what is left, so that the last is not the poorest."""
        if self._total_s is not None:
            left_s = max(0.0, self._total_s - now_s)
            self._block_end_s = now_s + left_s / max(1, self._blocks)
        self._blocks -= 1

    def expected_s(self, turn: Turn) -> float:
        """As long as this took last; else the longest of its workload or system; else a guess."""
        known = self._took_s.get((turn.workload, turn.system))
        if known is not None:
            return known
        for part, wanted in ((0, turn.workload), (1, turn.system)):
            alike = [took for turn_of, took in self._took_s.items() if turn_of[part] == wanted]
            if alike:
                return max(alike)
        return min(FIRST_GUESS_S, (self._total_s or FIRST_GUESS_S) / 4)

    def refusal(self, turn: Turn, now_s: float) -> str:
        """Why there is no time for this run; empty if there is."""
        if self._total_s is None:
            return ""
        left_s = self._block_end_s - now_s
        expected_s = self.expected_s(turn)
        if expected_s <= left_s:
            return ""
        return (
            f"skipped: about {expected_s:.0f} s needed, {max(0.0, left_s):.0f} s of the budget left"
        )

    def left_s(self, now_s: float, otherwise: float) -> float:
        """Seconds until the whole budget is spent."""
        return otherwise if self._total_s is None else max(1.0, self._total_s - now_s)

    def took(self, turn: Turn, seconds: float) -> None:
        """Remember how long a run took, its engine's start included."""
        self._took_s[turn.workload, turn.system] = seconds
