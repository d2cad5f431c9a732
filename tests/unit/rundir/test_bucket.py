"""A bucket behind keys that may be wrong and a network that may fail."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError

from batchwright.core.errors import BatchwrightError, InputError, JobError, StorageError
from batchwright.core.records import Split
from batchwright.rundir import bucket, layout, remote_file, stores
from batchwright.rundir.ledger import Ledger
from batchwright.rundir.locations import below, is_address, location_of
from batchwright.rundir.manifest import existing_run, run_if_there
from batchwright.rundir.remote_file import RemoteFile
from batchwright.rundir.split_queue import SplitQueue
from batchwright.rundir.storage import Storage
from tests.support.object_store import ObjectStore
from tests.support.s3_faults import faults
from tests.unit.rundir.small_runs import CountingStorage, ManualClock


def refusal(address: str) -> BatchwrightError:
    with pytest.raises(BatchwrightError) as caught:
        existing_run(address)
    return caught.value


def test_places_are_told_apart(tmp_path: Path) -> None:
    assert location_of("runs/a") == Path("runs/a")
    assert location_of("s3://bucket/run/") == "s3://bucket/run"
    assert below(tmp_path, "x") == tmp_path / "x"
    assert below("az://box/run", "x") == "az://box/run/x"
    assert is_address("gs://bucket/x")
    assert not is_address(Path("gs:/x"))
    with pytest.raises(JobError, match="s4:// is not known"):
        location_of("s4://bucket")


def test_an_empty_place_holds_no_run(s3: ObjectStore) -> None:
    address = f"{s3.new_place()}/run"
    assert run_if_there(address) is None
    assert "is not a run directory" in refusal(address).message


def test_a_missing_bucket_is_named(s3: ObjectStore) -> None:
    error = refusal("s3://nobody-made-this/run")
    assert isinstance(error, JobError)
    assert "there is no bucket s3://nobody-made-this" in error.message


@pytest.mark.parametrize(
    ("name", "said"),
    [("AWS_ACCESS_KEY_ID", "InvalidAccessKeyId"), ("AWS_SECRET_ACCESS_KEY", "SignatureDoesNot")],
)
def test_wrong_keys_end_the_command_at_once(
    s3: ObjectStore, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    address = f"{s3.new_place()}/run"
    monkeypatch.setenv(name, "wrong")
    error = refusal(address)
    assert isinstance(error, JobError)
    assert said in error.message
    assert "AWS_SECRET_ACCESS_KEY" in error.hint


def test_keys_that_stop_working_can_be_renewed(s3: ObjectStore) -> None:
    """What a run has begun is not lost when a token expires: exit 75, and it goes on."""
    text = "Server returned non-2xx status code: 403 Forbidden: <Code>ExpiredToken</Code>"
    error = stores.explained("cannot write x", GenericError(text), "s3://b/run", proved=True)
    assert isinstance(error, StorageError)
    assert error.exit_code == 75
    assert "ExpiredToken" in error.message


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    monkeypatch.setattr(bucket, "FIRST_PATIENCE_S", 0.0)
    error = refusal("s3://bucket/run")
    assert isinstance(error, StorageError)
    assert "127.0.0.1:9" in error.message


def test_no_keys_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Generic MicrosoftAzure error: Account must be specified"
    error = stores.explained("cannot read x", GenericError(text), "az://box/x", proved=False)
    assert isinstance(error, JobError)
    assert "no keys were found" in error.message
    assert "AZURE_STORAGE_ACCOUNT_NAME" in error.hint


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("status code: 503 Service Unavailable: <Code>SlowDown</Code>", True),
        ("status code: 409 Conflict: <Code>ConditionalRequestConflict</Code>", True),
        ("status code: 400 Bad Request: <Code>EntityTooLarge</Code>", False),
        ("error decoding response body", True),
    ],
)
def test_only_what_may_pass_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, text: str, passes: bool
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    tries = []

    def attempt() -> int:
        tries.append(1)
        if len(tries) < 4:
            raise GenericError(text)
        return 7

    if passes:
        assert stores.patiently(attempt, 60) == 7
    else:
        with pytest.raises(GenericError):
            stores.patiently(attempt, 60)
        assert len(tries) == 1


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def attempt() -> int:
        raise GenericError("connection refused")

    with pytest.raises(GenericError):
        stores.patiently(attempt, 0.3)


def test_a_short_answer_is_never_a_whole_object(
    s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server or proxy that says 200 and gives less than it lists."""
    storage = Storage(f"{s3.new_place()}/run")
    storage.put("part", b"0123456789")
    real = obstore.get
    answers = []

    class Short:
        def __init__(self, found: object) -> None:
            self.meta = found.meta  # type: ignore[attr-defined]
            self._data = bytes(found.bytes())  # type: ignore[attr-defined]

        def bytes(self) -> bytes:
            answers.append(1)
            return self._data[:4] if len(answers) < 3 else self._data

    monkeypatch.setattr(obstore, "get", lambda *a, **k: Short(real(*a, **k)))
    assert storage.read("part") == b"0123456789"
    assert len(answers) == 3


def test_through_faults_every_verb_does_its_work_once(
    s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A create whose answer is lost has won all the same: nobody else may believe it has."""
    address = f"{s3.new_place()}/run"
    with faults(s3.url, share=0.08) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        storage = Storage(address)
        for number in range(25):
            assert storage.create(f"claims/{number}", b"mine %d" % number)
            assert not storage.create(f"claims/{number}", b"theirs")
            storage.put(f"output/{number}", bytes([number]) * 30_000)
            assert storage.read(f"output/{number}") == bytes([number]) * 30_000
            assert storage.read_if_there(f"nothing/{number}") is None
        assert len(storage.names("claims")) == 25
        assert all(proxy.did[kind] for kind in ("cut before", "cut after", "slow down", "half"))


def test_a_claim_whose_answer_was_lost_is_held(s3: ObjectStore) -> None:
    """Else a worker would wait for itself for ever: it lives, and so keeps the claim."""
    storage = Storage(f"{s3.new_place()}/run")
    storage.put("claims/unit.0", b'{"worker":"me"}')
    assert Ledger(storage, "me", ManualClock(), 60).claim("unit")
    assert not Ledger(storage, "you", ManualClock(), 60).claim("unit")


class TestRemoteFile:
    def test_reads_anywhere(self, s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote_file, "FIRST_BLOCK_BYTES", 1000)
        monkeypatch.setattr(remote_file, "LARGEST_BLOCK_BYTES", 8000)
        bucket_address = s3.new_place()
        data = os.urandom(50_000)
        Storage(bucket_address).put("file", data)
        file = RemoteFile(f"{bucket_address}/file")
        pieces = []
        while piece := file.read(777):
            pieces.append(piece)
        assert b"".join(pieces) == data
        assert file.seek(-10, os.SEEK_END) == 49_990
        assert file.read(100) == data[-10:]
        assert file.read(100) == b""
        file.seek(20_000)
        assert (file.read(5), file.tell()) == (data[20_000:20_005], 20_005)
        file.seek(0)
        assert file.read() == data

    def test_through_faults(self, s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote_file, "LARGEST_BLOCK_BYTES", 1 << 16)
        bucket_address = s3.new_place()
        data = os.urandom(2_000_000)
        Storage(bucket_address).put("file", data)
        with faults(s3.url, share=0.1) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
            file = RemoteFile(f"{bucket_address}/file")
            pieces = []
            while piece := file.read(50_000):
                pieces.append(piece)
            assert b"".join(pieces) == data
            assert proxy.did["half"]

    def test_a_change_while_it_is_read_is_noticed(self, s3: ObjectStore) -> None:
        storage = Storage(s3.new_place())
        storage.put("file", b"a" * 200_000)
        file = RemoteFile(f"{storage.location}/file")
        file.read(10)
        storage.put("file", b"b" * 200_000)
        file.seek(100_000)
        with pytest.raises(InputError, match="was changed while it was read"):
            file.read(10)

    def test_nothing_there(self, s3: ObjectStore) -> None:
        with pytest.raises(FileNotFoundError):
            RemoteFile(f"{s3.new_place()}/file")


def test_pages_of_names_beyond_a_range_are_not_asked_for(
    s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(s3.new_place())
    for number in range(25):
        storage.put(f"claims/{number:02d}", b"")
    monkeypatch.setattr(bucket, "_PAGE", 5)
    pages = []
    inner = obstore.list

    def list_pages(*args: Any, **options: Any) -> Iterator[Any]:
        for page in inner(*args, **options):
            pages.append(len(page))
            yield page

    monkeypatch.setattr(obstore, "list", list_pages)
    assert storage.names("claims", before="07") == [f"{n:02d}" for n in range(7)]
    assert pages == [5, 5]
    pages.clear()
    assert storage.names("claims", after="02", before="07") == ["03", "04", "05", "06"]
    assert pages == [5]


def test_one_listing_shows_a_preparer_what_others_took(s3: ObjectStore) -> None:
    """A claim that is refused is two requests: not one for each split of 31 other workers."""
    place = s3.new_place()
    splits = [Split(number, "rows.jsonl", "jsonl", 0, -1) for number in range(40)]
    mine = CountingStorage(place)
    queue = SplitQueue(mine, Ledger(mine, "me", ManualClock(), 60), splits)
    mine.listed.clear()
    others = Ledger(Storage(place), "they", ManualClock(), 60)

    def take() -> tuple[int, int, int]:
        """The split, and what it took: listings and attempts."""
        mine.listed.clear()
        mine.created.clear()
        split = queue.take(0)
        assert split is not None
        return split.ordinal, mine.listed.count(layout.CLAIMS), len(mine.created)

    assert take() == (0, 0, 1)
    for number in range(1, 20):
        assert others.claim(layout.split_unit(number))
    assert take() == (20, 1, 2)
    for number in range(21, 30):
        assert others.claim(layout.split_unit(number))
    assert take() == (30, 1, 1), "others are ahead: it looks first"
    assert take() == (31, 1, 1)
    assert take() == (32, 0, 1), "and no more when they are not"
