"""Finds in an engine's log what ended it: the root cause, and not the line that comes last."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from batchwright.core.faults import Fault, KnownLine, Rank
from batchwright.engines.fatal_job import OF_THE_JOB
from batchwright.engines.fatal_machine import OF_THE_MACHINE

# On one line the first that matches holds, so what says more comes first.
KNOWN: tuple[KnownLine, ...] = (*OF_THE_MACHINE, *OF_THE_JOB)

# Of a log that is longer, the end.
MAX_CHARS = 4 << 20

# Some lines name every model that vLLM knows.
_SHOWN_CHARS = 240

# vLLM's own lines are `(EngineCore pid=7) ERROR 05-05 12:36:59 [core.py:1136] …`, Ray's and torch's
# have a mark of the process alone.
_AHEAD = re.compile(
    r"^\s*(?:\([^()]*\bpid=[^()]*\)|\[rank\d+\]:?)*\s*"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:.]+ \[[^\]]*\] ?)?"
)
_BELOW_ERROR = ("DEBUG", "INFO", "WARNING")

_TRACEBACK = "Traceback (most recent call last)"
_FRAME = re.compile(r'^\s*File "[^"]+", line \d+|^\s*[\^~]+\s*$')

# A traceback through torch's compiler is long; what is above it is another story.
_MAX_ABOVE = 400


def find_fault(log_text: str) -> Fault | None:
    """What ended the engine that left this log; None if no line of it is known.

    The first line that names a cause counts. Those that only follow from it (other cards that lose
    their peer, "see root cause above") count where no cause is found.

    Args:
        log_text: of one start of the engine, to its end; several lines or many.
    """
    lines = log_text[-MAX_CHARS:].splitlines()
    cut_lines = log_text[:-MAX_CHARS].count("\n") if len(log_text) > MAX_CHARS else 0
    found: dict[Rank, Fault] = {}
    for index, raw in enumerate(lines):
        line, level = _without_head(raw)
        if level in _BELOW_ERROR or not _any_known().search(line):
            continue
        for known, pattern, above in _compiled():
            if known.rank in found:
                continue
            match = pattern.search(line)
            if match and (above is None or _is_above(above, lines, index)):
                found[known.rank] = _fault(known, match, line, cut_lines + index + 1)
                break
        if Rank.CAUSE in found:
            break
    return found[min(found)] if found else None


def last_words(log_text: str, count: int) -> list[str]:
    """The last lines of a log that say something, without the frames of tracebacks."""
    lines = [_without_head(raw)[0].rstrip() for raw in log_text[-MAX_CHARS:].splitlines()]
    meaning: list[str] = []
    in_frame = False
    for line in lines:
        is_frame = bool(_FRAME.match(line))
        is_source = in_frame and line.startswith("    ")
        if line.strip() and not (is_frame or is_source):
            meaning.append(line)
        in_frame = is_frame or is_source
    return meaning[-count:]


def _without_head(raw: str) -> tuple[str, str | None]:
    """A line without what loggers put ahead of it, and its level."""
    head = _AHEAD.match(raw)
    assert head is not None, "every part of it may be missing"
    # The indentation of plain text is its own.
    return (raw if not head[0].strip() else raw[head.end() :]), head["level"]


def _is_above(above: re.Pattern[str], lines: Sequence[str], index: int) -> bool:
    """Whether the traceback that ends in a line goes through something."""
    for place in range(index - 1, max(-1, index - _MAX_ABOVE), -1):
        if above.search(lines[place]):
            return True
        if _TRACEBACK in lines[place]:
            return False
    return False


def _fault(known: KnownLine, match: re.Match[str], line: str, number: int) -> Fault:
    words = {name: text or "" for name, text in match.groupdict().items()}
    return Fault(
        code=known.code,
        summary=known.summary.format_map(words).strip(),
        remedy=known.remedy.format_map(words),
        line=line.strip().removeprefix("Value error, ")[:_SHOWN_CHARS],
        number=number,
        of_job=known.of_job,
    )


@cache
def _compiled() -> list[tuple[KnownLine, re.Pattern[str], re.Pattern[str] | None]]:
    return [
        (known, re.compile(known.pattern), re.compile(known.above) if known.above else None)
        for known in KNOWN
    ]


@cache
def _any_known() -> re.Pattern[str]:
    """One pattern that most lines fail at once."""
    plain = [re.sub(r"\(\?P<\w+>", "(?:", known.pattern) for known in KNOWN]
    return re.compile("|".join(f"(?:{pattern})" for pattern in dict.fromkeys(plain)))
