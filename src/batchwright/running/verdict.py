"""Whether so many rows go without an answer that the whole job must be wrong."""

from __future__ import annotations

import time

import orjson

from batchwright.core.errors import TooManyFailures
from batchwright.rundir import layout
from batchwright.rundir.state import Counts
from batchwright.rundir.storage import Storage

# Below this many rows, a share of failures says nothing about the job.
ROWS_TO_JUDGE = 100

LOOK_AGAIN_S = 0.05
PATIENCE = 40


def judge_rows(counts: Counts, limit: float, storage: Storage) -> None:
    """Hold the rows without an answer against `run.stop_at_failed`.

    Raises:
        TooManyFailures: with the commonest reasons and an example of each.
    """
    verdict = what_is_wrong(counts, limit)
    if verdict is not None:
        raise TooManyFailures(
            f"{verdict}: something is wrong with the whole job",
            commonest_reasons(counts, storage)
            + f"`batchwright rows {storage.location}` shows them; run.stop_at_failed is {limit}.",
        )


def _reasons(counts: Counts, storage: Storage) -> list[str]:
    """The files with reasons. They are written a moment after their rows count as rejected."""
    patience = PATIENCE if counts.rejected and storage.names(layout.ORDER) else 0
    for _ in range(patience):
        if storage.names(layout.REJECTED):
            break
        time.sleep(LOOK_AGAIN_S)
    return storage.names(layout.REJECTED)


def what_is_wrong(counts: Counts, limit: float) -> str | None:
    """Too many rows without an answer, in words; None if there are not.

    Rejected rows are held against the rows that were read, failed ones against those that came
    out of the engine: reading is far ahead of the engine, so a common sum would say nothing.
    """
    if counts.rows >= ROWS_TO_JUDGE and counts.rejected > limit * counts.rows:
        return f"{counts.rejected:,} of the first {counts.rows:,} rows are rejected"
    finished = counts.ok + counts.failed
    if finished >= ROWS_TO_JUDGE and counts.failed > limit * finished:
        return f"{counts.failed:,} of the first {finished:,} rows failed"
    return None


def commonest_reasons(counts: Counts, storage: Storage) -> str:
    """The commonest codes with an example each, a line per code."""
    reasons = {code: (number, "") for code, number in counts.failures.items()}
    for name in _reasons(counts, storage)[:1]:
        for line in storage.read(f"{layout.REJECTED}/{name}").splitlines():
            row = orjson.loads(line)
            number, example = reasons.get(row["code"], (0, ""))
            example = example or f": {row['file']}:{row['line']}: {row['message']}"
            reasons[row["code"]] = (number + 1, example)
    ranked = sorted(reasons.items(), key=lambda item: -item[1][0])[:3]
    return "".join(f"{number:,} x {code}{example}\n  " for code, (number, example) in ranked)
