"""How many processes a profile takes when nobody says."""

from __future__ import annotations

import pytest

from batchwright.config.job import Job
from batchwright.foresight.profiling import choose_processes


@pytest.mark.parametrize(
    ("splits", "cores", "processes"),
    [(100, 1, 1), (100, 2, 1), (100, 4, 1), (100, 6, 3), (100, 16, 8), (100, 64, 8), (2, 64, 1),
     (4, 64, 4)],
)  # fmt: skip
def test_the_default_follows_cores_and_splits(splits: int, cores: int, processes: int) -> None:
    assert (
        choose_processes(Job.model_validate({"input": {"path": "rows.jsonl"}}), splits, cores)
        == processes
    )


@pytest.mark.parametrize("asked", [1, 2, 12])
def test_what_the_user_sets_is_kept(asked: int) -> None:
    job = Job.model_validate({"input": {"path": "rows.jsonl"}, "run": {"prepare_processes": asked}})
    assert choose_processes(job, 100, 64) == asked
