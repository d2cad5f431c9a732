"""Slices of the pilot's work over time, from the engine's steps and when each row ended."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from batchwright.core.pilot import WorkSlice

MOST_SLICES = 60
MOSTLY_KNOWN = 0.5

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer]


def admitted_at(ended: Floats, places: int) -> Floats:
    """The step at which each row got its place: the first `places` at 0, then as rows ended.

    Args:
        ended: step at which each row ended, in the order in which the rows were fed to one
            engine, float64[n].
        places: rows that the engine ran at the same time at most.
    """
    admitted = np.zeros(len(ended))
    later = max(0, len(ended) - places)
    # The k-th row to find no place at once gets that of the k-th row to end.
    admitted[len(ended) - later :] = np.sort(ended)[:later]
    return np.minimum(admitted, ended)


def slices_of_rows(
    readings: Floats,
    ended: Floats,
    prompts: Ints,
    outputs: Ints,
    *,
    places: int,
    cached: Ints | None = None,
    counted: Floats | None = None,
    most: int = MOST_SLICES,
) -> tuple[WorkSlice, ...]:
    """Slices of about equal length of what one replica did.

    A row makes one token in each step, the last in the step in which it ends, and computes its
    prompt in the first of these; a row that was not in the engine for so many steps makes its
    tokens evenly from its admission on.

    Args:
        readings: (seconds, steps) since the first row went in, ascending, float64[m, 2]; the finer
            the better.
        ended: steps when each row ended, in the order in which they were fed, float64[n].
        prompts: prompt tokens of each row, int[n].
        outputs: output tokens of each row, int[n].
        places: rows that the engine ran at the same time at most.
        cached: prompt tokens of each row that the prefix cache saved, int[n].
        counted: the engine's own (prompt tokens computed, output tokens made, rows waiting) at
            each reading, float64[m, 3]: exact, also where other rows run beside these.
        most: slices; fewer when there are not so many readings.
    """
    # Only readings after a step say something new: between others there is time without work.
    moved = np.diff(readings[:, 1], prepend=0.0) > 0
    times, steps = np.vstack([np.zeros((1, 2)), readings[moved]]).T
    if not len(ended) or times[-1] <= 0 or steps[-1] <= 0:
        return ()
    # Edges lie on readings, which are exact, as evenly in time as these allow.
    wanted = np.linspace(0.0, times[-1], most + 1)
    edge = np.unique(np.append(np.searchsorted(times, wanted[:-1]), len(times) - 1))
    marks = steps[edge]
    admitted = admitted_at(ended, places)
    computed = prompts - cached if cached is not None else prompts
    done = _done_at(marks, admitted, ended, prompts, computed, outputs)
    work, full = np.diff(done, axis=1).T, marks[1:] <= admitted.max()
    if counted is not None:
        work, full = _corrected(work, np.vstack([np.zeros((1, 3)), counted[moved]])[edge])
    seconds = np.diff(times[edge])
    return tuple(
        WorkSlice._make((float(seconds[i]), *map(float, work[i]), bool(full[i])))
        for i in range(len(seconds))
        if work[i, 1] > 0 and work[i, 3] > 0 and seconds[i] > 0
    )


def _corrected(work: Floats, counted: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """The slices with the engine's own counts, float64[slices, 5], and whether rows waited.

    What was read is scaled with the output, at the ratio of the rows that are known: of the slice
    while these are most of what ran, of all slices otherwise.
    """
    tokens = np.diff(counted[:, :2], axis=0)
    made, read = work[:, 1], work[:, 4]
    overall = read.sum() / max(1e-9, made.sum())
    mostly = made >= MOSTLY_KNOWN * tokens[:, 1]
    ratio = np.where(mostly & (made > 0), read / np.maximum(1e-9, made), overall)
    return np.column_stack([tokens, work[:, 2:4], tokens[:, 1] * ratio]), counted[1:, 2] > 0


def _done_at(
    marks: Floats, admitted: Floats, ended: Floats, prompts: Ints, computed: Ints, outputs: Ints
) -> Floats:
    """What was done up to each mark: the fields of a slice from the second on, float64[5, marks]."""
    began = np.maximum(ended - outputs, admitted)
    took = np.maximum(1e-9, ended - began)
    made = np.clip((marks[:, None] - began) / took, 0.0, 1.0) * outputs
    first = np.clip(marks[:, None] - began, 0.0, 1.0)
    columns = (
        first @ computed,
        made.sum(axis=1),
        (ended <= marks[:, None]).sum(axis=1),
        marks,
        (made * (prompts + made / 2)).sum(axis=1),
    )
    return np.array(columns, dtype=np.float64)
