"""Finds the rows that kill the engine: a pure state machine, without engine or clock."""

from __future__ import annotations

from collections.abc import Sequence

# An engine also dies for reasons of its own, so one death is no proof against a row.
DEATHS_ALONE = 2


class Suspects:
    """Halves the rows that were in flight at a death, until the killers run alone.

    The first death may be nobody's fault: all its rows run once more, together. From the second
    one on they run in halves, group by group and nothing else beside them, so the killer among N
    rows is alone after about log2(N) deaths. Each row leaves once: by `finished`, or in the
    verdict of `died`.
    """

    def __init__(self) -> None:
        self._groups: list[list[int]] = []  # a stack: the last group is the next, or runs now
        self._deaths_alone: dict[int, int] = {}

    @property
    def active(self) -> bool:
        """Whether groups are left to run; while so, no other row may run."""
        return bool(self._groups)

    def group(self) -> list[int]:
        """The rows that run now, alone; empty when nobody is under suspicion."""
        return list(self._groups[-1]) if self._groups else []

    def finished(self, row: int) -> None:
        """The row has an outcome. It must belong to the group that runs now."""
        self._deaths_alone.pop(row, None)
        if not self._groups or row not in self._groups[-1]:
            return
        self._groups[-1].remove(row)
        if not self._groups[-1]:
            self._groups.pop()

    def died(self, rows: Sequence[int]) -> list[int]:
        """The engine died with these rows in flight; return the rows found guilty."""
        if not rows:
            return []  # it died idle
        investigating = self.active
        if investigating:
            self._groups.pop()
        if len(rows) == 1:
            return self._died_alone(rows[0])
        if not investigating:
            self._groups.append(list(rows))
            return []
        middle = len(rows) // 2
        self._groups += [list(rows[middle:]), list(rows[:middle])]
        return []

    def _died_alone(self, row: int) -> list[int]:
        deaths = self._deaths_alone.pop(row, 0) + 1
        if deaths >= DEATHS_ALONE:
            return [row]
        self._deaths_alone[row] = deaths
        self._groups.append([row])
        return []
