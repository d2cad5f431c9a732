"""Several exports into one folder: readers see one of them whole, whoever is killed or stopped."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from batchwright.core.errors import StorageError
from batchwright.rundir.storage import Storage
from batchwright.write.bucket_folder import ResultBucket
from batchwright.write.folder import LocalFolder, ResultStore
from tests.support.object_store import ObjectStore


def write(store: ResultStore, names: list[str], text: str) -> None:
    """Write files, each with this text, and close them."""
    for name in names:
        file = store.open(name)
        file.write(text.encode())
        store.close(name, file)


def show(store: LocalFolder, names: list[str]) -> None:
    store.publish(names, {".manifest.json": b"{}", "_SUCCESS": b""})


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("results-*")}


A = ["results-00000.jsonl", "results-00001.jsonl"]
B = ["results-00000.jsonl"]


def test_one_that_begins_leaves_the_files_of_one_under_way_alone(tmp_path: Path) -> None:
    first = LocalFolder(tmp_path)
    write(first, A, "first")
    second = LocalFolder(tmp_path)
    show(first, A)
    assert content(tmp_path) == dict.fromkeys(A, "first")
    write(second, B, "second")
    show(second, B)
    assert content(tmp_path) == dict.fromkeys(B, "second")


def test_one_that_was_stopped_and_goes_on_shows_nothing_over_a_later_one(tmp_path: Path) -> None:
    """It may not even know of the rows that have been run again meanwhile."""
    stopped = LocalFolder(tmp_path)
    write(stopped, A, "stopped")
    later = LocalFolder(tmp_path)
    write(later, B, "later")
    show(later, B)
    with pytest.raises(StorageError, match="another export into .* has ended meanwhile"):
        show(stopped, A)
    stopped.abandon()
    assert content(tmp_path) == dict.fromkeys(B, "later")
    assert (tmp_path / "_SUCCESS").exists()
    assert not list(tmp_path.glob(".staging-*"))


def test_in_a_bucket_one_that_goes_on_late_replaces_nothing_either(s3: ObjectStore) -> None:
    place = s3.new_place()
    stopped = ResultBucket(place)
    write(stopped, A[:1], "stopped")
    later = ResultBucket(place)
    write(later, B, "later")
    later.publish(B, {".manifest.json": b'{"of": "later"}', "_SUCCESS": b""})
    with pytest.raises(StorageError, match="another export into .* has ended meanwhile"):
        write(stopped, A[1:], "stopped")
    with pytest.raises(StorageError, match="another export into .* has ended meanwhile"):
        stopped.publish(A, {".manifest.json": b"{}", "_SUCCESS": b""})
    stopped.abandon()
    found = Storage(place)
    assert {name: found.read(name) for name in found.names("")} == {
        "_SUCCESS": b"", B[0]: b"later",
    }  # fmt: skip


def test_what_a_killed_one_left_is_removed_by_the_next(tmp_path: Path) -> None:
    def die() -> None:
        write(LocalFolder(tmp_path), A, "killed")
        os.kill(os.getpid(), signal.SIGKILL)

    child = multiprocessing.get_context("fork").Process(target=die)
    child.start()
    child.join()
    (tmp_path / ".staging-17").mkdir()  # as an earlier version named it
    assert len(list(tmp_path.glob(".staging-*"))) == 2
    with_room = LocalFolder(tmp_path)
    assert len(list(tmp_path.glob(".staging-*"))) == 1
    with_room.abandon()


def test_a_full_disk_leaves_the_earlier_results_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = LocalFolder(tmp_path)
    write(earlier, A, "earlier")
    show(earlier, A)
    late = LocalFolder(tmp_path)
    write(late, B, "late")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        show(late, B)
    monkeypatch.undo()
    late.abandon()
    assert content(tmp_path) == dict.fromkeys(A, "earlier")
    assert (tmp_path / "_SUCCESS").exists()
