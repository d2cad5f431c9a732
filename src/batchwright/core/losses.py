"""Where the time of the engines went: start-up, waits, the end of the run, and work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batchwright.core.readings import Reading
from batchwright.core.tail import find_tail

# How far a row is with its answer when it is preempted. It is the row that was let in last, so it is
# young; and some of what it computed is found in the prefix cache when its turn comes again. In a
# simulation of vLLM's scheduler, with answers of very different lengths and a full cache, 5 to 20 % of
# a mean answer and the whole prompt were computed again.
PREEMPTED_AT = 0.1

START_UP = "start-up"
STARVED = "no prepared rows at hand"
MEDIA = "waiting for images and sounds"
COMMITS = "waiting for commits"
TAIL = "tail: fewer and fewer rows left"
ENDING = "after the last row: commits, engines stopped"
PREEMPTED = "preempted rows, computed again"
PREFIXES = "prefixes computed again"
BELOW = "engine below the limit"
WORK = "engine at work"
LIMIT = "limit of the hardware"


@dataclass(frozen=True, slots=True)
class Loss:
    """A share of the time: what took it, how long, summed over all engines, and a remark."""

    name: str
    seconds: float
    remark: str = ""


@dataclass(frozen=True, slots=True)
class EngineTime:
    """When one engine's worker was there.

    Attributes:
        began_at: Unix time of the worker's start.
        up_at: when its engine took rows; None if it never did.
        ended_at: its last sign of life.
    """

    began_at: float
    up_at: float | None
    ended_at: float

    @property
    def seconds(self) -> float:
        """From start to end."""
        return max(0.0, self.ended_at - self.began_at)

    @property
    def start_up_s(self) -> float:
        """Until the engine took rows; all of the time if it never did."""
        up_at = self.ended_at if self.up_at is None else self.up_at
        return min(self.seconds, max(0.0, up_at - self.began_at))


def engine_losses(
    time: EngineTime,
    readings: Sequence[Reading],
    mean_tokens: float,
    tail_ends_at: float | None = None,
) -> dict[str, float]:
    """Seconds of one engine by what took them; what is left of its time it was at work.

    Args:
        time: when it was there.
        readings: of its worker, oldest first; without any only the start-up is known.
        mean_tokens: that a preempted row loses: see `PREEMPTED_AT`.
        tail_ends_at: when the last row of the run came out; None if the engine did not end for want
            of rows, and so has no tail.
    """
    found = {START_UP: time.start_up_s}
    before = readings
    if tail_ends_at is not None:
        tail = find_tail(readings, min(tail_ends_at, time.ended_at))
        before = [one for one in readings if one.at <= tail.begins_at]
        found |= {TAIL: tail.lost_s, ENDING: max(0.0, time.ended_at - tail_ends_at)}
    feed = next((one.feed for one in reversed(before) if one.feed is not None), None)
    if feed is not None:
        found |= {STARVED: feed.starved_s, MEDIA: feed.media_s, COMMITS: feed.commit_wait_s}
    left = max(0.0, time.seconds - sum(found.values()))
    found[PREEMPTED] = min(left, _preempted_share(readings, mean_tokens) * left)
    return found


def _preempted_share(readings: Sequence[Reading], mean_tokens: float) -> float:
    """Share of the tokens computed that were computed for the second time, about."""
    last = next((one for one in reversed(readings) if one.engine is not None), None)
    if last is None or last.engine is None:
        return 0.0
    again = last.engine.preemptions * mean_tokens
    once = last.prompt_tokens - last.cached_tokens + last.completion_tokens
    return again / (again + once) if again and once > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Balance:
    """All the time of all engines, by what took it.

    Attributes:
        total_s: seconds of all engines together.
        limit_s: that the hardware needs for the rows that are done; None where nobody can tell.
        parts: of the total, which they add up to; the limit or the work first.
    """

    total_s: float
    limit_s: float | None
    parts: tuple[Loss, ...]

    @property
    def share_of_limit(self) -> float | None:
        """How near the run came to the limit, 0 to 1 (above 1 if the limit is wrong)."""
        if self.limit_s is None or not self.total_s:
            return None
        return self.limit_s / self.total_s


def balance(
    total_s: float,
    losses: Sequence[dict[str, float]],
    limit_s: float | None = None,
    best_limit_s: float | None = None,
) -> Balance:
    """The losses of all engines, and what is left of their time.

    Args:
        total_s: seconds of all engines together.
        losses: of each engine, see `engine_losses`.
        limit_s: that the hardware needs for the rows that are done, with the prefix cache's hits
            as they were.
        best_limit_s: the same with the hits of the best order.
    """
    names = (START_UP, STARVED, MEDIA, COMMITS, TAIL, ENDING, PREEMPTED)
    sums = {name: sum(one.get(name, 0.0) for one in losses) for name in names}
    work = max(0.0, total_s - sum(sums.values()))
    parts = [Loss(name, seconds) for name, seconds in sums.items() if seconds > 0.001 * total_s]
    if limit_s is None:
        return Balance(total_s, None, (Loss(WORK, work), *parts))
    best = min(limit_s, best_limit_s if best_limit_s is not None else limit_s)
    reached, misses = min(work, best), min(max(0.0, work - best), limit_s - best)
    engine = [Loss(LIMIT, reached)]
    if misses > 0:
        engine.append(Loss(PREFIXES, misses))
    engine.append(Loss(BELOW, work - reached - misses))
    return Balance(total_s, best, (*engine, *parts))
