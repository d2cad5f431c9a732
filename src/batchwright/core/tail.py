"""The tail of a run: how long engines stood half empty or idle at the end, when few rows were left."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from batchwright.core.readings import Reading

# An engine that holds fewer of its usual rows is half empty.
HALF = 0.5


@dataclass(frozen=True, slots=True)
class Tail:
    """What one engine lost at the end of a run.

    Attributes:
        begins_at: Unix time; that of its last row if it was not half empty before.
        draining_s: of a full engine, lost until its own last row.
        idle_s: from then on, while other engines had rows.
    """

    begins_at: float
    draining_s: float
    idle_s: float

    @property
    def lost_s(self) -> float:
        """Seconds of a full engine."""
        return self.draining_s + self.idle_s


def find_tail(readings: Sequence[Reading], ends_at: float) -> Tail:
    """How long an engine stood half empty at the end, for want of rows.

    The tail begins when the engine held half of its usual rows for the last time, and ends with the
    last row of the whole run. Of each second in it, the share of the usual rows that did not run is
    lost. Time in which it waited for rows that were being prepared, or for their images, is none of
    it. Nor is a batch that got small because the KV cache had no room for more.

    Args:
        readings: of its worker, oldest first.
        ends_at: when the last row of the run came out, of whichever engine.
    """
    last_row_at = find_last_row(readings)
    if not last_row_at:
        return Tail(ends_at, 0.0, 0.0)
    idle_s = max(0.0, ends_at - last_row_at)
    usual = usual_rows(readings)
    own = [one for one in readings if one.at <= last_row_at]
    begin = len(own)
    while begin > 1 and _is_draining(own[begin - 2], own[begin - 1], usual):
        begin -= 1
    lost = [
        (after.at - before.at) * (1.0 - _share_full(after, usual))
        for before, after in pairwise(own[begin - 1 :])
    ]
    return Tail(own[begin - 1].at, sum(lost), idle_s)


def find_last_row(readings: Sequence[Reading]) -> float:
    """When the last row came out of an engine, by the counts of its worker; 0 if none did."""
    grown = [after.at for before, after in pairwise(readings) if after.rows > before.rows]
    return grown[-1] if grown else 0.0


def find_ends(
    last_rows: Mapping[str, float], *, complete: bool, begun_at: float, stopped: Collection[str]
) -> dict[str, float]:
    """When the tail of each engine ends, by its worker's name; one that has none is left out.

    An engine has a tail if it ended for want of rows: not in a run that is not complete, not if
    something stopped it, and not in an earlier start of the run.

    Args:
        last_rows: when the last row of each came out.
        complete: whether every row has its fate.
        begun_at: when the newest start of the run began.
        stopped: the workers that ended with an error.
    """
    if not complete:
        return {}
    in_this_start = {name: at for name, at in last_rows.items() if at >= begun_at}
    end = max(in_this_start.values(), default=0.0)
    return {name: end for name in in_this_start if name not in stopped}


def usual_rows(readings: Sequence[Reading]) -> float:
    """Rows in the batch that a row usually ran in: half of the rows' time went by in smaller ones.

    A median of the readings would be that of the tail where this takes most of the time.
    """
    batches = sorted(_running(one) for one in readings)
    half = 0.5 * sum(batches)
    reached = 0.0
    for batch in batches:
        reached += batch
        if reached >= half:
            return batch
    return 0.0


def _is_draining(before: Reading, after: Reading, usual: float) -> bool:
    return _share_full(after, usual) < HALF and not _waited(before, after)


def _share_full(reading: Reading, usual: float) -> float:
    """How full an engine is, by its usual rows or by as many as its cache has room for now."""
    cap = reading.feed.cap if reading.feed else 0
    full = min(usual, cap) if cap else usual
    return min(1.0, _running(reading) / full) if full else 1.0


def _waited(before: Reading, after: Reading) -> bool:
    """Whether the engine had room between two readings, and its next rows were not ready."""
    if before.feed is None or after.feed is None:
        return False
    waited = after.feed.starved_s + after.feed.media_s - before.feed.starved_s - before.feed.media_s
    return waited > 0.5 * (after.at - before.at)


def _running(reading: Reading) -> float:
    return float(reading.engine.running) if reading.engine else 0.0
