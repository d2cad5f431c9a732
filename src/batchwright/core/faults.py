"""Words for what ends an engine: a known fault with its cause, its cure and the line that shows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Fault:
    """What ended an engine, as its log tells.

    Attributes:
        code: its name, for people and scripts.
        summary: what happened, in a sentence without a full stop.
        remedy: what to do, with the job file's own names.
        line: of the log, without what loggers put ahead of it.
        number: of that line in the text that was searched, counted from 1.
        of_job: whether the job has to be changed: with the same settings it will happen again.
    """

    code: str
    summary: str
    remedy: str
    line: str
    number: int
    of_job: bool = False


class Rank(IntEnum):
    """What a line is worth: a cause beats what follows from it, whichever is printed first."""

    CAUSE = 0
    EFFECT = 1  # the other cards of an engine complain when one of them dies
    ENVELOPE = 2  # "see above"


class KnownLine(NamedTuple):
    """A line that an engine's log may have.

    Attributes:
        code: several lines may have the same.
        pattern: a regular expression; its named groups can stand in `summary` and `remedy`.
        summary: what happened.
        remedy: what to do.
        above: a regular expression that must be found in the traceback above the line.
        of_job: whether the job has to be changed.
        rank: what the line is worth.
    """

    code: str
    pattern: str
    summary: str
    remedy: str
    above: str = ""
    of_job: bool = False
    rank: Rank = Rank.CAUSE
