"""Answers that `max_tokens` ends, and the cap that would end few of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from batchwright.pilot.totals import weighted_quantile

WANTED_SHARE = 0.01
# Above this share of cut answers the tail is not seen well enough to be drawn out.
_LARGEST_SHARE = 0.2
_TAIL_SHARE = 0.3


def cap_for_one_percent(
    outputs: npt.NDArray[np.int64],
    cut: npt.NDArray[np.bool_],
    weights: npt.NDArray[np.float64],
) -> tuple[int | None, bool]:
    """The `max_tokens` that would cut 1 % of the answers, and whether it is extrapolated.

    With at most 1 % cut now it is the 99th percentile. Otherwise a Pareto tail is fitted to the
    longest answers, those cut taken as censored (Hill 1975; censored: Beirlant et al. 2007).

    Args:
        outputs: output tokens of each row, int64[n].
        cut: whether the cap ended it, bool[n].
        weights: rows of the job that it stands for, float64[n].
    """
    if not len(outputs):
        return None, False
    share = float(weights[cut].sum() / weights.sum())
    if share <= WANTED_SHARE:
        return max(1, weighted_quantile(outputs, weights, 1 - WANTED_SHARE)), False
    if share > _LARGEST_SHARE:
        return None, False
    start = max(1, weighted_quantile(outputs, weights, 1 - _TAIL_SHARE))
    tail = outputs > start
    ends = float(weights[tail & ~cut].sum())
    logs = float((weights[tail] * np.log(outputs[tail] / start)).sum())
    if ends <= 0 or logs <= 0:
        return None, False
    index = ends / logs
    reach = float(weights[tail].sum() / weights.sum())
    cap = start * (reach / WANTED_SHARE) ** (1 / index)
    return max(int(outputs.max()) + 1, round(cap)), True
