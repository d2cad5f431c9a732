from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from batchwright.core.errors import JobError, ResumeRefused, StorageError
from batchwright.core.records import Split
from batchwright.foresight.survey import survey
from batchwright.rundir import artifacts, layout
from batchwright.rundir.manifest import (
    Manifest,
    differences,
    encode_input_type,
    existing_run,
    open_manifest,
    read_manifest,
)
from batchwright.rundir.storage import Storage
from tests.unit.rundir.small_runs import prompts, small_job, write_rows


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl", prompts(3))


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "run")


def begin(storage: Storage, data: Path, **settings: Any) -> tuple[Manifest, bool]:
    return open_manifest(storage, survey(small_job(data, **settings)))


def test_a_new_run_is_begun_and_the_same_job_resumes(storage: Storage, data: Path) -> None:
    manifest, resumed = begin(storage, data)
    assert not resumed
    assert begin(storage, data) == (manifest, True)
    assert read_manifest(storage) == manifest


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        ({"sampling__max_tokens": 7}, "sampling.max_tokens: nothing -> 7"),
        ({"sampling__preset": "creative"}, "sampling.preset: deterministic -> creative"),
        ({"sampling__temperature": 0.5}, "sampling.temperature: nothing -> 0.5"),
        ({"sampling__row_fields": "none"}, "sampling.row_fields: auto -> none"),
        ({"prompt__template": "{{ prompt }}"}, "prompt.template: nothing -> {{ prompt }}"),
        ({"prompt__system": "Be kind."}, "prompt.system: nothing -> Be kind."),
        ({"input__id": "row"}, "input.id: auto -> row"),
        ({"input__duplicate_ids": "allow"}, "input.duplicate_ids: reject -> allow"),
        ({"input__limit": 2}, "input.limit: nothing -> 2"),
        ({"plan__over_length": "truncate_left"}, "plan.over_length: reject -> truncate_left"),
        ({"engine__options": {"max_model_len": 99}}, "plan.max_model_len: nothing -> 99"),
    ],
)
def test_a_changed_job_is_refused_with_the_change(
    storage: Storage, data: Path, settings: dict[str, Any], change: str
) -> None:
    begin(storage, data)
    with pytest.raises(ResumeRefused) as caught:
        begin(storage, data, **settings)
    assert change in caught.value.message
    assert caught.value.exit_code == 2
    assert caught.value.message.count("->") == 1


def test_a_run_of_an_older_format_is_read_but_not_gone_on_with(
    storage: Storage, data: Path
) -> None:
    manifest, _ = begin(storage, data)
    raw = storage.read(layout.MANIFEST).replace(b'"version": 3', b'"version": 1')
    storage.publish(layout.MANIFEST, raw)
    assert read_manifest(storage) == manifest
    with pytest.raises(ResumeRefused, match=r"older batchwright \(format 1\)"):
        begin(storage, data)


def test_a_run_of_the_format_before_goes_on_with_the_splits_that_it_has(
    storage: Storage, tmp_path: Path
) -> None:
    for name in ("a", "b", "c"):
        write_rows(tmp_path / "folder" / f"{name}.jsonl", prompts(1))
    first, _ = begin(storage, tmp_path / "folder")
    (shared,) = first.splits
    apart = tuple(Split(n, path, "jsonl", 0, 9) for n, path in enumerate(shared.paths))
    manifest = orjson.loads(artifacts.dump(replace(first, splits=apart)))
    for split in manifest["splits"]:
        del split["also"]
    storage.publish(layout.MANIFEST, orjson.dumps({**manifest, "version": 2}))
    found, resumed = begin(storage, tmp_path / "folder")
    assert resumed
    assert found.splits == apart


def test_another_model_is_refused_by_both_names(
    storage: Storage, data: Path, tiny_model: Path
) -> None:
    begin(storage, data, model__name=str(tiny_model))
    other = tiny_model.parent / "tiny-b"
    if not other.exists():
        other.symlink_to(tiny_model)
    with pytest.raises(ResumeRefused, match=r"model\.name: .*tiny -> .*tiny-b"):
        begin(storage, data, model__name=str(other))


def test_every_change_is_named(storage: Storage, data: Path) -> None:
    begin(storage, data)
    with pytest.raises(ResumeRefused) as caught:
        begin(storage, data, sampling__seed=1, prompt__column="prompt", input__id="id")
    for name in ("sampling.seed", "prompt.column", "input.id"):
        assert name in caught.value.message


def test_input_of_another_size_is_refused(storage: Storage, data: Path) -> None:
    begin(storage, data)
    with data.open("ab") as file:
        file.write(b'{"id": "z", "prompt": "one more"}\n')
    with pytest.raises(ResumeRefused, match=r"input\.files\..*rows\.jsonl: \d+ bytes, .* -> "):
        begin(storage, data)


def test_input_written_again_with_the_same_size_is_refused(storage: Storage, data: Path) -> None:
    begin(storage, data)
    before = data.stat()
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    with pytest.raises(ResumeRefused, match=r"rows\.jsonl"):
        begin(storage, data)


def test_a_further_input_file_is_refused(storage: Storage, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write_rows(folder / "a.jsonl", prompts(1))
    begin(storage, folder)
    write_rows(folder / "b.jsonl", prompts(1, start=5))
    with pytest.raises(ResumeRefused, match=r"b\.jsonl: nothing -> "):
        begin(storage, folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"run__replicas": 4},
        {"run__prepare_processes": 2},
        {"run__max_failed": 0.5},
        {"run__chunk_rows": 10},
        {"engine__options": {"max_num_seqs": 3}},
        {"output__format": "jsonl"},
        {"output__path": "/elsewhere"},
        {"output__columns": "none"},
    ],
)
def test_what_does_not_touch_the_answers_may_change(
    storage: Storage, data: Path, settings: dict[str, Any]
) -> None:
    begin(storage, data)
    manifest, resumed = begin(storage, data, **settings)
    assert resumed
    ((dotted, value),) = settings.items()
    section, key = dotted.split("__")
    assert manifest.job[section][key] == value
    assert read_manifest(storage) == manifest


def test_the_cut_of_the_input_stays_as_it_was_first_made(storage: Storage, data: Path) -> None:
    """Prepared parts go by the number of their split: another cut would lose or repeat rows."""
    first, _ = begin(storage, data)
    size = data.stat().st_size
    halves = (
        Split(0, str(data), "jsonl", 0, size // 2),
        Split(1, str(data), "jsonl", size // 2, size),
    )
    manifest, resumed = open_manifest(storage, replace(first, splits=halves))
    assert resumed
    assert manifest.splits == first.splits
    assert read_manifest(storage).splits == first.splits


def test_a_folder_without_a_manifest_is_no_run(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "typo"):
        with pytest.raises(JobError, match="is not a run directory"):
            existing_run(folder)
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize(
    ("settings", "planned", "engines"),
    [
        ({}, {}, 1),
        ({}, {"replicas": 2, "engines_per_gpu": 3}, 6),
        ({"run__replicas": 4}, {"replicas": 2, "engines_per_gpu": 3}, 12),
        ({"run__engines_per_gpu": 1}, {"replicas": 2, "engines_per_gpu": 3}, 2),
    ],
)
def test_the_tail_is_cut_for_every_engine_that_may_run(
    storage: Storage, data: Path, settings: dict[str, Any], planned: dict[str, int], engines: int
) -> None:
    manifest, _ = begin(storage, data, **settings)
    assert replace(manifest, planned=planned).most_engines == engines


def test_a_torn_manifest_is_named(storage: Storage, data: Path) -> None:
    storage.put(layout.MANIFEST, bytes(50))
    with pytest.raises(StorageError, match=r"manifest\.json is damaged"):
        begin(storage, data)


def test_the_input_type_survives() -> None:
    kept = pa.struct(
        [pa.field("é", pa.list_(pa.int8())), pa.field("at", pa.timestamp("us", "UTC"))]
    )
    manifest = Manifest({}, {}, (), (), "parquet", encode_input_type(kept), "", False, 1, {})
    assert manifest.arrow_input_type() == kept


def test_differences_name_leaves_in_both_directions() -> None:
    old = {"a": {"x": 1, "same": [1]}, "gone": True, "deep": {"b": {"c": "old"}}}
    new = {"a": {"x": 2, "same": [1]}, "new": "y", "deep": {"b": {"c": "n" * 100}}}
    short, gone, deep, fresh = differences(old, new)
    assert (short, gone, fresh) == ("a.x: 1 -> 2", "gone: True -> nothing", "new: nothing -> y")
    assert deep.startswith("deep.b.c: old -> nnn")
    assert len(deep) < 100
    assert differences(old, old) == []


def test_a_long_change_is_shown_where_it_is() -> None:
    """Two prompts that differ after the first 60 characters must not look the same."""
    head = "Classify the review below as positive or negative and say why, in "
    (change,) = differences({"template": head + "English."}, {"template": head + "German."})
    before, _, after = change.removeprefix("template: ").partition(" -> ")
    assert before != after
