"""What a run directory's storage must keep, in a folder and in a bucket of a real server."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from batchwright.core.errors import StorageError
from batchwright.core.readings import Reading
from batchwright.rundir.readings import read_readings, reading_line
from batchwright.rundir.storage import Storage
from tests.support.object_store import ObjectStore


@pytest.fixture(params=["folder", "s3", "azure"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "folder":
        return Storage(tmp_path / "run")
    bucket = request.getfixturevalue(request.param).new_place()
    return Storage(f"{bucket}/some/run")


def test_of_many_creators_one_wins_and_its_bytes_stay(storage: Storage) -> None:
    together = threading.Barrier(8)

    def race(number: int) -> bool:
        together.wait()
        return storage.create("claims/unit.0", b"%d" % number * 1000)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(race, range(8)))
    assert won.count(True) == 1
    assert storage.read("claims/unit.0") == b"%d" % won.index(True) * 1000


def test_put_replaces_and_commit_does_not(storage: Storage) -> None:
    storage.publish("a/b", b"one")
    storage.put("a/b", b"two")
    assert storage.commit("a/b", b"three") is False
    assert storage.read("a/b") == b"two"


def test_names_are_the_files_directly_in_a_folder(storage: Storage) -> None:
    for name in ("order/2", "order/10", "order/below/1", "other/3", "top"):
        storage.put(name, b"")
    assert storage.names("order") == ["10", "2"]
    assert storage.names("order", after="1") == ["10", "2"]
    assert storage.names("order", after="10") == ["2"]
    assert storage.names("order", before="2") == ["10"]
    assert storage.names("order", after="10", before="2") == []
    assert storage.names("nowhere", after="1") == []
    assert storage.names("nowhere") == []
    assert storage.names("") == ["top"]


def test_more_names_than_fit_on_one_page(storage: Storage) -> None:
    numbers = range(1100)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: storage.put(f"claims/{n:04d}", b""), numbers))
    assert storage.names("claims") == [f"{n:04d}" for n in numbers]
    assert storage.names("claims", after="0004") == [f"{n:04d}" for n in numbers[5:]]
    assert storage.names("claims", after="0004", before="1050") == [
        f"{n:04d}" for n in numbers[5:1050]
    ]


def test_files_that_are_waited_for_are_there_or_not_yet(storage: Storage) -> None:
    storage.put("order/1", b"one")
    assert storage.read_awaited(["order/0", "order/1", "nowhere/2"]) == [None, b"one", None]
    storage.put("order/0", b"")
    assert storage.read_awaited(["order/0", "order/1"]) == [b"", b"one"]
    assert storage.read_awaited([]) == []


def test_a_mark_changes_with_its_file_alone(storage: Storage) -> None:
    storage.put("workers/a", b"1")
    storage.put("workers/b", b"1")
    before = storage.marks("workers")
    storage.put("workers/b", b"22")
    after = storage.marks("workers")
    assert [name for name in after if after[name] != before[name]] == ["b"]


def test_what_is_not_there(storage: Storage) -> None:
    assert storage.read_if_there("nope") is None
    with pytest.raises(StorageError, match="nope") as caught:
        storage.read("nope")
    assert caught.value.exit_code == 75
    storage.delete("nope")


def test_many_files_are_read_in_their_order(storage: Storage) -> None:
    paths = [f"receipts/{number}" for number in range(40)]
    for path in paths:
        storage.put(path, path.encode())
    assert storage.read_each(paths[::-1]) == [path.encode() for path in paths[::-1]]
    with pytest.raises(StorageError, match="gone"):
        storage.read_each([*paths, "gone"])


def test_lines_of_threads_and_processes_do_not_mix(storage: Storage) -> None:
    other = Storage(storage.place)
    lines = [b"%d" % number * 500 + b"\n" for number in range(8)]

    def log(number: int) -> None:
        for _ in range(10):
            (storage, other)[number % 2].append("events.jsonl", lines[number])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(log, range(8)))
    storage.flush_logs()
    other.flush_logs()
    written = storage.read_log("events.jsonl").splitlines(keepends=True)
    assert sorted(written) == sorted(lines * 10)


def test_the_end_of_a_log_is_its_newest_whole_lines(storage: Storage) -> None:
    lines = [b'{"line": %d}\n' % number for number in range(100, 160)]
    for line in lines:
        storage.append("telemetry/w.jsonl", line)
        if line == lines[40]:
            storage.flush_logs()
    storage.flush_logs()
    whole = b"".join(lines)
    assert storage.read_log("telemetry/w.jsonl") == whole
    assert storage.read_log_end("telemetry/w.jsonl", 1 << 20) == whole
    for size in (1, len(lines[0]) - 1, len(lines[0]), len(lines[0]) + 1, 100):
        end = storage.read_log_end("telemetry/w.jsonl", size)
        assert whole.endswith(end)
        assert end == b"" or end.startswith(b'{"line"')
        assert len(end) >= len(lines[0]) * (size // len(lines[0]))
    assert storage.read_log_end("telemetry/nobody.jsonl", 100) == b""


def test_a_log_that_nobody_wrote_is_empty(storage: Storage) -> None:
    assert storage.read_log("telemetry/nobody.jsonl") == b""


def test_lines_that_a_store_did_not_take_are_written_later(
    s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Storage(f"{s3.new_place()}/some/run")

    def refuse(path: str, data: bytes) -> None:
        raise StorageError("not now")

    with monkeypatch.context() as broken:
        broken.setattr(bucket._place, "put", refuse)
        bucket.append("events.jsonl", b"1\n")
        with pytest.raises(StorageError):
            bucket.flush_logs()
    bucket.append("events.jsonl", b"2\n")
    bucket.flush_logs()
    assert bucket.read_log("events.jsonl") == b"1\n2\n"


def test_readings_of_workers_are_found_wherever_they_are(storage: Storage) -> None:
    for worker in ("b", "a"):
        storage.append(f"telemetry/{worker}.jsonl", reading_line(Reading(at=1.0, worker=worker)))
    storage.flush_logs()
    storage.put("telemetry/chunk-0-000001.json", b"{}")
    found = read_readings(storage)
    assert list(found) == ["a", "b"]
    assert found["a"] == [Reading(at=1.0, worker="a")]


def test_a_file_of_this_machine_is_sent(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    storage.send("results/file", tmp_path / "file")
    assert storage.read("results/file") == b"x" * 100_000


def test_scratch_is_on_this_machine_and_the_same_each_time(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_SCRATCH", str(tmp_path / "scratch"))
    folder = storage.local_folder("logs")
    assert folder.is_dir()
    assert folder == Storage(storage.place).local_folder("logs")
    assert (storage.local_path("logs") == folder) is storage.is_local
    assert folder.is_relative_to(tmp_path)
