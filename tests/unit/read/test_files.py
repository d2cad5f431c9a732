from __future__ import annotations

import os
from pathlib import Path

import pytest

from batchwright.core.errors import InputError, JobError
from batchwright.read.files import list_files


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")


def names(root: Path, path: str | list[str]) -> list[str]:
    return [str(Path(file.path).relative_to(root)) for file in list_files(path)]


def test_a_folder_gives_all_data_files_below_it(tmp_path: Path) -> None:
    touch(tmp_path, "b.jsonl", "a/c.jsonl", "_SUCCESS", ".b.jsonl.crc", "x.crc", ".git/config")
    touch(tmp_path, "_delta_log/0.json", "_year=2024/d.jsonl")
    assert names(tmp_path, str(tmp_path)) == ["_year=2024/d.jsonl", "a/c.jsonl", "b.jsonl"]


def test_a_glob_skips_markers_but_a_named_file_is_taken(tmp_path: Path) -> None:
    touch(tmp_path, "_part.jsonl", "a.jsonl", "deep/er/b.jsonl", "_tmp/c.jsonl")
    assert names(tmp_path, f"{tmp_path}/*.jsonl") == ["a.jsonl"]
    assert names(tmp_path, f"{tmp_path}/**/*.jsonl") == ["a.jsonl", "deep/er/b.jsonl"]
    assert names(tmp_path, f"{tmp_path}/_tmp/*.jsonl") == ["_tmp/c.jsonl"]
    assert names(tmp_path, f"{tmp_path}/_part.jsonl") == ["_part.jsonl"]


def test_a_glob_that_matches_a_folder_reads_the_folder(tmp_path: Path) -> None:
    touch(tmp_path, "x/a.jsonl", "y/_SUCCESS", "y/b.jsonl")
    assert names(tmp_path, f"{tmp_path}/*") == ["x/a.jsonl", "y/b.jsonl"]


def test_a_list_is_sorted_and_each_file_comes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "b.jsonl", "a.jsonl")
    monkeypatch.chdir(tmp_path)
    found = list_files(["b.jsonl", "*.jsonl", "./b.jsonl", str(tmp_path / "a.jsonl")])
    assert [Path(file.path).name for file in found] == ["a.jsonl", "b.jsonl"]


def test_brackets_in_a_name_are_no_pattern_if_the_file_exists(tmp_path: Path) -> None:
    touch(tmp_path, "a[1].jsonl", "a1.jsonl")
    assert names(tmp_path, f"{tmp_path}/a[1].jsonl") == ["a[1].jsonl"]


def test_linked_folders_are_followed_once(tmp_path: Path) -> None:
    touch(tmp_path, "data/a.jsonl", "other/b.jsonl")
    (tmp_path / "data/link").symlink_to(tmp_path / "other")
    (tmp_path / "data/circle").symlink_to(tmp_path / "data")
    assert names(tmp_path, f"{tmp_path}/data") == ["data/a.jsonl", "data/link/b.jsonl"]


def test_size_and_identity(tmp_path: Path) -> None:
    touch(tmp_path, "a.jsonl")
    os.utime(tmp_path / "a.jsonl", ns=(5, 1234567890123456789))
    (file,) = list_files(str(tmp_path / "a.jsonl"))
    assert (file.size, file.identity) == (3, "1234567890123456789")


@pytest.mark.parametrize("name", ["missing.jsonl", "*.nothing", "empty", "broken", "fifo"])
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InputError) as caught:
        list_files(str(tmp_path / name))
    assert str(tmp_path / name) in caught.value.message
    assert caught.value.hint


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(InputError, match="empty list"):
        list_files([])


@pytest.mark.parametrize("path", ["ftp://host/x.jsonl", "s3://"])
def test_an_address_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(JobError, match=path.partition(":")[0]) as caught:
        list_files(path)
    assert "s3://" in caught.value.hint


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jsonl")
    try:
        (tmp_path / name).write_text("{}")
    except OSError:
        pytest.skip("this file system has only UTF-8 names")
    with pytest.raises(InputError, match="not UTF-8"):
        list_files(str(tmp_path))
