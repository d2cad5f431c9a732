"""Workers without a leader share a run in a bucket, whatever becomes of some of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchwright import pipeline
from batchwright.rundir import layout
from batchwright.rundir.storage import Storage
from batchwright.rundir.waste import Waste, wasted
from tests.support.azurite import AzureBlobs
from tests.support.object_store import ObjectStore, with_environment
from tests.support.s3_faults import faults
from tests.support.shared_run import (
    LEASE_S,
    Crew,
    all_ids,
    first_at_work,
    wait_for_receipts,
    wait_until_all_work,
    write_job,
    write_rows,
)

SLOW = os.environ.get("BATCHWRIGHT_SLOW") == "1"


# Slow only in sum: half a minute more for what the one on S3 shows.
@pytest.fixture(params=["s3", pytest.param("azure", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest) -> ObjectStore | AzureBlobs:
    found: ObjectStore | AzureBlobs = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def bucket(store: ObjectStore | AzureBlobs) -> str:
    return store.new_place()


@pytest.fixture
def crew(store: ObjectStore | AzureBlobs, bucket: str, tmp_path: Path) -> Iterator[Crew]:
    job = write_job(tmp_path / "job.yaml", bucket, chunk_rows=100, seconds_per_step=0.4)
    found = Crew(job, {**os.environ, **store.environment}, tmp_path)
    yield found
    found.end()


def prove(bucket: str, rows: int) -> Waste:
    """Nothing is missing and nothing there twice; returns what was computed in vain."""
    proof = pipeline.verify(f"{bucket}/run")
    assert proof.passed, proof.problems
    assert (proof.rows_in, proof.ok) == (rows, rows)
    assert (proof.missing, proof.duplicates) == (0, 0)
    results = Storage(f"{bucket}/out")
    assert results.read_if_there("_SUCCESS") == b""
    assert all_ids(results) == [f"r{number}" for number in range(rows)]
    standing = pipeline.status(f"{bucket}/run")
    assert standing.counts.complete
    return wasted(standing.workers, complete=True)


def test_two_workers_of_which_one_is_killed(crew: Crew, bucket: str) -> None:
    rows = 1500
    write_rows(Storage(f"{bucket}/in"), rows, files=2)
    run = Storage(f"{bucket}/run")
    crew.add(2)
    victim = first_at_work(run, crew, 100)
    crew.signal(victim, signal.SIGKILL, family=True)
    assert crew.wait([1 - victim], 120) == [0], crew.said(1 - victim)
    assert prove(bucket, rows).rows > 0, "the rows in the engine that was killed"


@pytest.mark.skipif(not SLOW, reason="takes minutes; set BATCHWRIGHT_SLOW=1")
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("share", [0.0, 0.01], ids=["undisturbed", "faults"])
def test_what_a_cluster_does_to_workers(s3: ObjectStore, tmp_path: Path, share: float) -> None:
    rows, bucket = 50_000, s3.new_place()
    write_rows(Storage(f"{bucket}/in"), rows)
    job = write_job(tmp_path / "job.yaml", bucket, chunk_rows=500, seconds_per_step=0.15)
    run = Storage(f"{bucket}/run")
    with faults(s3.url, share=share or 1e-9) as proxy:
        environment = with_environment(s3) | {"AWS_ENDPOINT_URL": proxy.url}
        crew = Crew(job, environment, tmp_path)
        began = time.monotonic()
        try:
            crew.add(5)
            wait_until_all_work(run, crew, 300)
            crew.signal(0, signal.SIGKILL, family=True)
            crew.signal(1, signal.SIGSTOP, family=True)
            frozen_at = time.monotonic()
            wait_for_receipts(run, len(run.names(layout.RECEIPTS)) + 10, 300, crew)
            crew.signal(2, signal.SIGTERM, family=False)
            crew.signal(3, signal.SIGKILL, family=True)
            crew.add(2)
            assert crew.wait([2], 90) == [75], crew.said(2)
            wait_for_receipts(run, rows // 500, 900, crew)  # also of the chunks that it holds
            assert time.monotonic() - frozen_at > 2 * LEASE_S
            crew.signal(1, signal.SIGCONT, family=True)
            assert crew.wait([1, 4, 5, 6], 900) == [0] * 4, [crew.said(n) for n in (1, 4, 5, 6)]
        finally:
            crew.end()
        seconds = time.monotonic() - began
        waste = prove(bucket, rows)
    print(f"\n{rows} rows in {seconds:.0f} s; wasted {waste.rows} rows; {proxy.did}")
    assert waste.rows > 0
    assert not share or min(proxy.did[kind] for kind in ("cut before", "cut after", "half")) > 0
