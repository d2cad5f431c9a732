"""A sweep on the fake engine, and what is remembered of it."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from batchwright.core.errors import JobError, Stopped
from batchwright.core.sweep import RememberedSweep, Shape, SweepKey, SweepReport
from batchwright.core.workload import LengthHistogram
from batchwright.engines.bench import Pace
from batchwright.foresight.sweep import pilot_work, sweep
from batchwright.machine.best_settings import find_sweep, keep_sweep, sweep_key
from batchwright.pilot.sweep import is_overfull
from batchwright.rundir.manifest import open_manifest
from batchwright.running.roles import attend
from tests.unit.rundir.small_runs import SmallRun, prompts, small_job, small_run

QUICK = Pace(min_s=0.05, turns=2)
KEY = SweepKey("vllm", "m", "H200", "auto", "", Shape(256, 1024, 128))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATCHWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sweeps"


def piloted(tmp_path: Path, **options: object) -> SmallRun:
    """A run of 80 rows whose pilot, all of them, is done."""
    settings = {f"engine__options__{name}": value for name, value in options.items()}
    run = small_run(tmp_path, prompts(80), **settings)
    manifest = replace(run.manifest, pilot_rows=80)
    (tmp_path / "run" / "manifest.json").unlink()
    open_manifest(run.storage, manifest)
    run.manifest = manifest
    run.prepare()
    run.order()
    attend(run.storage.root, "pilot", "pilot-1", threading.Event())
    return run


def swept(run: SmallRun, said: list[str], minutes: float = 1.0) -> SweepReport:
    return sweep(run.storage.root, minutes, said.append, threading.Event(), QUICK)


def tried(report: SweepReport) -> list[int]:
    return [int(point.settings["max_num_seqs"]) for point in report.points]


def test_more_rows_are_kept_where_steps_cost_the_same(cache: Path, tmp_path: Path) -> None:
    run = piloted(tmp_path, seconds_per_step=0.01, max_num_seqs=16)
    said: list[str] = []
    report = swept(run, said)
    assert tried(report)[:5] == [2, 4, 8, 16, 32]
    assert report.reference == 3
    # Every step ends all rows that run: 32 make 16 times what 2 make, less what a busy machine
    # takes away.
    assert report.points[4].rows_per_s > 3 * report.points[0].rows_per_s
    assert report.best.settings["max_num_seqs"] > 2
    assert any("starting 1 engine for 32 rows" in line for line in said)


def test_two_engines_are_kept_where_they_make_twice_as_much(cache: Path, tmp_path: Path) -> None:
    run = piloted(tmp_path, seconds_per_step=0.008, rows_per_step=1, max_num_seqs=8)
    report = swept(run, [])
    assert report.best.settings["engines_per_gpu"] == 3
    assert report.worth(report.best) > 0.5
    work = pilot_work(run.storage)
    found = find_sweep(sweep_key(run.job, {}, report.device, work.prompts, work.max_tokens))
    assert found.sweep is not None
    assert found.sweep.settings == report.best.settings


def test_a_full_cache_ends_the_search(cache: Path, tmp_path: Path) -> None:
    run = piloted(tmp_path, seconds_per_step=0.01, kv_tokens=250, max_num_seqs=32)
    report = swept(run, [])
    assert tried(report)[:2] == [4, 8]
    assert 32 not in tried(report)
    assert any("max_num_seqs 32: the KV cache was full before" in line for line in report.skipped)
    assert is_overfull(report.points[-1])


def test_no_time_at_all_is_an_error(cache: Path, tmp_path: Path) -> None:
    run = piloted(tmp_path, seconds_per_step=0.008, rows_per_step=1)
    with pytest.raises(JobError, match="time was over"):
        swept(run, [], minutes=0.0)


def test_a_stop_ends_it(cache: Path, tmp_path: Path) -> None:
    run = piloted(tmp_path)
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        sweep(run.storage.root, 1.0, [].append, stop, QUICK)
    assert not cache.exists()


def test_the_work_is_the_pilots_rows_with_their_answers_lengths(tmp_path: Path) -> None:
    run = piloted(tmp_path)
    work = pilot_work(run.storage)
    assert sorted(row.row for row in work.rows) == list(range(80))
    assert 8 <= work.output_mean <= 24
    assert work.prompts.rows == 80


def test_a_run_without_a_pilot_has_nothing_to_sweep_with(tmp_path: Path) -> None:
    run = small_run(tmp_path, prompts(3))
    run.prepare()
    run.order()
    with pytest.raises(JobError, match="no row of the pilot"):
        pilot_work(run.storage)


def kept(**changes: object) -> RememberedSweep:
    made = RememberedSweep(
        KEY, 64, "2026-01-31", "vllm 0.25.1", 1, {"max_num_seqs": 512}, {"max_num_seqs": 256}, 0.07
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_sweep_is_found_again_for_the_same_work_only(tmp_path: Path) -> None:
    keep_sweep(kept(), tmp_path)
    assert find_sweep(KEY, root=tmp_path).sweep == kept()
    assert find_sweep(KEY, 100.0, tmp_path).sweep == kept()
    assert find_sweep(KEY, 200.0, tmp_path).sweep is None
    other = replace(KEY, shape=Shape(512, 1024, 128))
    assert find_sweep(other, root=tmp_path).sweep is None
    assert find_sweep(KEY, root=tmp_path / "nothing").sweep is None


def test_the_newest_is_taken_while_nobody_knows_the_outputs(tmp_path: Path) -> None:
    newer = kept(output_mean=256, measured_on="2026-02-01")
    keep_sweep(newer, tmp_path)
    keep_sweep(kept(), tmp_path)
    assert find_sweep(KEY, root=tmp_path).sweep == newer


def test_a_damaged_file_is_named_and_removed(tmp_path: Path) -> None:
    path = keep_sweep(kept(), tmp_path)
    path.write_text("{")
    found = find_sweep(KEY, root=tmp_path)
    assert found.sweep is None
    assert str(path) in found.problems[0]
    assert not path.exists()


def test_only_options_that_a_sweep_does_not_set_are_part_of_the_key(tmp_path: Path) -> None:
    lengths = LengthHistogram.of([100, 300])
    bare, swept_over, other = (
        sweep_key(small_job(tmp_path / "x.jsonl", engine__options=options), {}, "cpu", lengths, 16)
        for options in ({}, {"max_num_seqs": 9}, {"enforce_eager": True})
    )
    assert bare == swept_over
    assert bare != other
    assert bare.shape == Shape(128, 256, 16)
