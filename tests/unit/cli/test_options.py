from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchwright.cli.options import job_and_dir
from batchwright.core.errors import JobError
from batchwright.foresight.survey import survey
from tests.unit.rundir.small_runs import prompts, small_run, write_rows


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("data/reviews.jsonl.gz", "reviews"),
        ("reviews", "reviews"),
        ("data/reviews/*.parquet", "reviews"),
        ("data/part-?.csv", "data"),
        ("/a/b[12].jsonl", "a"),
        ("s3://bucket/reviews/*", "reviews"),
    ],
)
def test_a_run_is_named_after_its_data(source: str, name: str) -> None:
    # With a format, nobody has to look at the rows: there is no such bucket.
    job, folder = job_and_dir(source, {}, ["input.format=parquet"], None)
    assert job.name == name
    assert folder.name == name
    assert folder.parent.name == "runs"


def test_options_that_were_not_given_change_nothing(tmp_path: Path) -> None:
    job, folder = job_and_dir(
        "x.jsonl", {"model.name": None, "input.limit": 0 or None}, [], tmp_path
    )
    assert job.model.name == ""
    assert folder == tmp_path


def test_settings_win_over_plain_options() -> None:
    job, _ = job_and_dir("x.jsonl", {"input.limit": 3}, ["input.limit=4"], None)
    assert job.input.limit == 4


@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
def test_a_job_file_is_known_by_its_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"ask{suffix}"
    path.write_text("input: {path: x.jsonl}\nrun: {dir: 'there/{name}'}\n")
    job, folder = job_and_dir(str(path), {"engine.kind": "fake"}, [], None)
    assert job.engine.kind == "fake"
    assert folder == tmp_path / "there" / "ask"


def test_a_run_folder_gives_its_own_job(tmp_path: Path) -> None:
    run = small_run(tmp_path, prompts(2), sampling__seed=5)
    job, folder = job_and_dir(str(run.storage.root), {}, ["run.replicas=2"], None)
    assert folder == run.storage.root
    assert job.sampling.seed == 5
    assert job.run.replicas == 2


@pytest.mark.parametrize("raw", [b"", bytes(50), b"[]", b'{"version": 1}'])
def test_a_run_folder_with_a_damaged_manifest_is_an_error_of_ours(
    tmp_path: Path, raw: bytes
) -> None:
    from batchwright.core.errors import BatchwrightError

    (tmp_path / "manifest.json").write_bytes(raw)
    with pytest.raises(BatchwrightError, match=r"manifest\.json"):
        job_and_dir(str(tmp_path), {}, [], None)


@pytest.mark.parametrize("pattern", ["runs/{date}", "runs/{", "runs/{name.x}", "runs/{0}"])
def test_a_run_directory_with_another_placeholder_is_refused(pattern: str) -> None:
    with pytest.raises(JobError, match=r"run\.dir"):
        job_and_dir("x.jsonl", {}, [f"run.dir='{pattern}'"], None)


def test_settings_of_the_engine_keep_their_kinds(tmp_path: Path) -> None:
    source = str(write_rows(tmp_path / "x.jsonl", prompts(1)))
    settings = ["engine.options.max_num_seqs=4", "engine.options.enforce_eager=true"]
    job, _ = job_and_dir(source, {}, settings, None)
    expected: dict[str, Any] = {"max_num_seqs": 4, "enforce_eager": True}
    assert job.engine.options == expected


def test_a_run_does_not_depend_on_the_folder_it_was_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of another pod, or `run RUN` typed elsewhere, must find the same files."""
    write_rows(tmp_path / "rows.jsonl", prompts(1))
    monkeypatch.chdir(tmp_path)
    options = {"output.path": "out", "engine.kind": "fake"}
    job, _ = job_and_dir("rows.jsonl", options, [], None)
    assert job.input.path == str(tmp_path / "rows.jsonl")
    assert job.output.path == str(tmp_path / "out")
    again, _ = job_and_dir(str(tmp_path / "rows.jsonl"), options, [], None)
    assert survey(again).fingerprint == survey(job).fingerprint


def test_a_job_file_named_by_a_relative_path_is_the_same_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ask.yaml").write_text("input: {path: x.jsonl}\nrun: {dir: there}\n")
    monkeypatch.chdir(tmp_path)
    relative, absolute = (
        job_and_dir(source, {}, [], None)[0] for source in ("ask.yaml", str(tmp_path / "ask.yaml"))
    )
    assert relative.input.path == absolute.input.path == str(tmp_path / "x.jsonl")


@pytest.mark.parametrize("source", ["*.jsonl", ".", "?.jsonl"])
def test_data_without_a_name_is_named_after_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    folder = tmp_path / "reviews"
    folder.mkdir()
    write_rows(folder / "a.jsonl", prompts(1))
    monkeypatch.chdir(folder)
    job, place = job_and_dir(source, {"engine.kind": "fake"}, [], None)
    assert (job.name, str(place)) == ("reviews", "runs/reviews")
    _, place = job_and_dir(source, {"engine.kind": "fake"}, [], tmp_path / "here")
    assert place == tmp_path / "here"
    monkeypatch.chdir("/")
    assert job_and_dir("*.jsonl", {"engine.kind": "fake"}, [], None)[0].name == "job"
