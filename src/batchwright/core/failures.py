"""Failures that are alike: the same code and the same message but for numbers and quoted texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from batchwright.core.remedies import remedy_of

# What a group says of its rows.
FIRST_ROWS = 5

# Messages of one code that differ by more than numbers: the further ones are one group.
MAX_PATTERNS = 20
OTHER = "other messages"

_MAX_CHARS = 240

_MASKS = (
    (re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\"<>]+"), "URL"),
    (re.compile(r'"(?:[^"\\]|\\.)*"'), '"…"'),
    (re.compile(r"(?<!\w)'(?:[^'\\]|\\.)*'(?!\w)"), "'…'"),
    (re.compile(r"`[^`]*`"), "`…`"),
    (re.compile(r"(?<![\w/])(?:/[\w.@-]+){2,}"), "PATH"),
    (re.compile(r"\b(?=[0-9a-f-]*\d)[0-9a-f]{8,}(?:-[0-9a-f]+)*\b"), "#"),
    (re.compile(r"\d+(?:[.,_]\d+)*"), "#"),
)


class Failure(NamedTuple):
    """A row without an answer; `status` is `failed` or `rejected`."""

    row: int
    status: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Rows without an answer that fail in the same way.

    Attributes:
        status: `failed` or `rejected`.
        code: of all of them.
        pattern: their message, with `#`, `'…'`, `URL` and `PATH` for what differs.
        count: how many there are, among those that were looked at.
        rows: the first of them by number.
        example: the message of the first one.
        remedy: what to do.
        exact: whether `count` is of the whole run, and not of a part of its chunks.
    """

    status: str
    code: str
    pattern: str
    count: int
    rows: tuple[int, ...]
    example: str
    remedy: str
    exact: bool = True

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(slots=True)
class _Pile:
    count: int = 0
    rows: list[int] = field(default_factory=list)
    example: str = ""

    def add(self, failure: Failure) -> None:
        self.count += 1
        if not self.rows or failure.row < self.rows[0]:
            self.example = failure.message
        if len(self.rows) < FIRST_ROWS or failure.row < self.rows[-1]:
            self.rows = sorted([*self.rows, failure.row])[:FIRST_ROWS]


def pattern_of(message: str) -> str:
    """A message without what differs from row to row: numbers, quoted texts, addresses, paths."""
    text = message.partition("\n")[0][: 4 * _MAX_CHARS]
    for found, mask in _MASKS:
        text = found.sub(mask, text)
    return text[:_MAX_CHARS]


def group_failures(failures: Iterable[Failure], *, exact: bool = True) -> tuple[FailureGroup, ...]:
    """Groups of failures, the largest first; in memory is a pile per pattern, not the failures.

    Args:
        failures: in any order, each row once.
        exact: whether they are all that the run has.
    """
    piles: dict[tuple[str, str, str], _Pile] = {}
    patterns: Counter[tuple[str, str]] = Counter()
    for failure in failures:
        kind = (failure.status, failure.code)
        key = (*kind, pattern_of(failure.message))
        if key not in piles:
            if patterns[kind] >= MAX_PATTERNS:
                key = (*kind, OTHER)
            else:
                patterns[kind] += 1
        piles.setdefault(key, _Pile()).add(failure)
    groups = [
        FailureGroup(
            status=status,
            code=code,
            pattern=pattern,
            count=pile.count,
            rows=tuple(pile.rows),
            example=pile.example,
            remedy=remedy_of(code),
            exact=exact,
        )
        for (status, code, pattern), pile in piles.items()
    ]
    return tuple(sorted(groups, key=lambda one: (-one.count, one.code, one.pattern)))


def in_all(
    groups: Sequence[FailureGroup],
    totals: Mapping[str, int] | None,
    total: int = 0,
) -> tuple[FailureGroup, ...]:
    """Groups of a part of the failures, with estimates of their counts among all.

    Args:
        groups: of those that were looked at.
        totals: how many there are of each code; None if only their sum is known.
        total: that sum.
    """
    looked_at: Counter[str] = Counter()
    for group in groups:
        looked_at[group.code] += group.count
    everything = sum(looked_at.values())

    def estimated(group: FailureGroup) -> int:
        if totals is None:
            return max(group.count, round(group.count * total / everything))
        known = totals.get(group.code, group.count)
        return max(group.count, round(group.count * known / looked_at[group.code]))

    return tuple(replace(one, count=estimated(one), exact=False) for one in groups)
