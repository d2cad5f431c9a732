from __future__ import annotations

import errno
import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import GenericError

from batchwright.core.errors import NotAllowed, StorageError
from batchwright.rundir.storage import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "run")


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk that nobody may write to, not even root."""
    place = tmp_path / "read-only"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_to_start_again_does_not_help_where_one_may_not_write(read_only: Path) -> None:
    with pytest.raises(NotAllowed, match="Read-only") as caught:
        Storage(read_only).put("a/b.json", b"{}")
    assert caught.value.exit_code == 2, "a loop that starts it while it ends with 75 would not end"
    assert "that you may write to" in caught.value.hint


@pytest.mark.parametrize("name", ["file/run", "file"])
def test_a_folder_that_cannot_be_made_is_wrong_usage_and_nothing_to_try_again(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(
        NotAllowed, match="as a run directory: (Not a directory|File exists)"
    ) as caught:
        Storage(tmp_path / name)
    assert caught.value.exit_code == 2
    assert "--dir" in caught.value.hint


@pytest.mark.parametrize("verb", ["create", "commit"])
def test_one_of_many_creators_wins_and_its_bytes_stay(storage: Storage, verb: str) -> None:
    together = threading.Barrier(8)

    def race(number: int) -> bool:
        together.wait()
        return bool(getattr(storage, verb)("claims/unit.0", b"%d" % number * 1000))

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(race, range(8)))
    assert won.count(True) == 1
    assert storage.read("claims/unit.0") == b"%d" % won.index(True) * 1000


def test_publish_replaces_and_commit_does_not(storage: Storage) -> None:
    storage.publish("a/b", b"one")
    storage.publish("a/b", b"two")
    assert storage.commit("a/b", b"three") is False
    assert storage.read("a/b") == b"two"


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_named(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A receipt must be whole and come second to none: without links that is not to be had."""

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(NotAllowed, match="its file system has no hard links") as caught:
        storage.commit("manifest.json", b"{}")
    assert caught.value.exit_code == 2
    assert "--dir" in caught.value.hint
    assert list(storage.root.iterdir()) == []


@pytest.mark.parametrize("verb", ["commit", "publish", "put", "create", "append"])
def test_files_have_the_rights_that_any_new_file_gets(storage: Storage, verb: str) -> None:
    """Who may read the folder may read the run; in a folder for a group its members may work on it."""
    for mask, rights in ((0o022, 0o644), (0o002, 0o664), (0o077, 0o600)):
        before = os.umask(mask)
        try:
            getattr(storage, verb)(f"a/{mask}", b"x\n")
        finally:
            os.umask(before)
        assert stat.S_IMODE((storage.root / f"a/{mask}").stat().st_mode) == rights


def test_what_was_there_is_replaced_only_once_the_new_bytes_are_on_the_disk(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut between the two leaves neither: of a manifest that is the whole run."""
    storage.publish("manifest.json", b"old")
    seen: list[bytes] = []
    flush = os.fsync

    def look(descriptor: int) -> None:
        seen.append((storage.root / "manifest.json").read_bytes())
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    storage.publish("manifest.json", b"new")
    assert seen == [b"old", b"new"], "the file first, then the folder with its new name"
    assert [path.name for path in storage.root.iterdir()] == ["manifest.json"]


def test_names_are_the_files_directly_in_a_folder_sorted(storage: Storage) -> None:
    for name in ("order/2", "order/10", "order/below/1", "other/3"):
        storage.put(name, b"")
    assert storage.names("order") == ["10", "2"]
    assert storage.names("nowhere") == []


def test_names_are_those_that_marks_has(storage: Storage) -> None:
    """Files that are being written, hidden ones, folders and links that lead nowhere are none."""
    for name in ("plain", "with space", "a+b=c", "über", "tilde~", "100%25"):
        storage.put(f"odd/{name}", b"")
    for name in (".commit-x", "plain#1"):
        (storage.root / "odd" / name).write_bytes(b"")
    (storage.root / "odd" / "broken").symlink_to("nowhere")
    (storage.root / "odd" / "linked").symlink_to("plain")
    (storage.root / "odd" / "below").mkdir()
    assert storage.names("odd") == list(storage.marks("odd"))
    assert "linked" in storage.names("odd")


def test_read_of_nothing(storage: Storage) -> None:
    assert storage.read_if_there("nope") is None
    with pytest.raises(StorageError, match="nope"):
        storage.read("nope")


def test_an_empty_file_is_there(storage: Storage) -> None:
    storage.put("empty", b"")
    assert storage.read_if_there("empty") == b""


def test_delete_may_be_repeated(storage: Storage) -> None:
    storage.put("output/part", b"x")
    storage.delete("output/part")
    storage.delete("output/part")
    assert storage.names("output") == []


def test_lines_appended_by_threads_do_not_mix(storage: Storage) -> None:
    lines = [b"%d" % number * 500 + b"\n" for number in range(8)]

    def log(line: bytes) -> None:
        for _ in range(25):
            storage.append("events.jsonl", line)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(log, lines))
    written = storage.read("events.jsonl").splitlines(keepends=True)
    assert sorted(written) == sorted(lines * 25)


def test_a_full_disk_is_named_as_such(storage: Storage) -> None:
    (storage.root / "events.jsonl").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="disk is full") as caught:
        storage.append("events.jsonl", b"line\n")
    assert caught.value.exit_code == 75


def test_a_full_disk_under_obstore_is_named_as_such(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise GenericError("Unable to copy data to file: No space left on device (os error 28)")

    monkeypatch.setattr(obstore, "put", full)
    for verb in (storage.put, storage.create):
        with pytest.raises(StorageError, match="disk is full"):
            verb("output/part", b"data")


def test_a_run_directory_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot use .*file/run as a run directory"):
        Storage(tmp_path / "file" / "run")


def test_a_run_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="as a run directory"):
        Storage(tmp_path / "file")


@pytest.mark.parametrize("verb", ["create", "put", "commit", "publish", "append"])
def test_a_path_below_a_file_is_a_storage_error_that_names_it(storage: Storage, verb: str) -> None:
    storage.put("order", b"a file where a folder should be")
    with pytest.raises(StorageError, match="cannot write .*order/0-000000.json"):
        getattr(storage, verb)("order/0-000000.json", b"x")


def test_reads_below_a_file_are_storage_errors(storage: Storage) -> None:
    storage.put("order", b"")
    for read in (storage.read, storage.read_if_there):
        with pytest.raises(StorageError, match="cannot read .*order/x"):
            read("order/x")


def test_no_temporary_file_is_left_or_listed(storage: Storage) -> None:
    storage.create("claims/a.0", b"1")
    storage.create("claims/a.0", b"2")
    storage.put("claims/b.0", b"3")
    assert sorted(path.name for path in (storage.root / "claims").iterdir()) == ["a.0", "b.0"]
