"""Says when a run leaves what its pilot promised."""

from __future__ import annotations

from math import sqrt

from batchwright.core.pilot import PilotReport
from batchwright.pilot.show import in_words

# So much must be done, in pilots, before the finished part says anything.
_FEWEST_PILOTS = 1.0


def drifted(
    report: PilotReport, rows_done: int, seconds_spent: float, rows_total: int
) -> str | None:
    """One line when the finished part leaves the pilot's interval, else None.

    The pace so far is drawn out to all rows and held against the interval, which is widened for
    the chance in the finished part itself (it is a sample too: variances s2/n and s2/m add up).
    Rows in flight are partly done: how far is not known, so both ends must lie outside.

    Args:
        report: of the pilot.
        rows_done: rows with an outcome, the pilot's included if they count.
        seconds_spent: on them, start-up included.
        rows_total: of the job.
    """
    if rows_done < max(1.0, _FEWEST_PILOTS * report.rows) or rows_done >= rows_total:
        return None
    fixed = report.start_up_s + report.tail_s
    working = max(0.0, seconds_spent - report.start_up_s)
    slow = (fixed + working / rows_done * rows_total) / 3600
    in_flight = min(float(rows_total), rows_done + report.running)
    fast = (fixed + working / in_flight * rows_total) / 3600
    wider = sqrt(1 + report.rows / rows_done)
    said = report.hours
    low = said.estimate - (said.estimate - said.low) * wider
    high = said.estimate + (said.high - said.estimate) * wider
    if low <= slow and fast <= high:
        return None
    direction = "slower" if fast > high else "faster"
    return (
        f"after {rows_done:,} of {rows_total:,} rows the job is {direction} than the pilot said: "
        f"on course for {in_words((slow + fast) / 2)}, "
        f"not {in_words(said.low)} to {in_words(said.high)}"
    )
