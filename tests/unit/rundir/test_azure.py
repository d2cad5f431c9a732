"""Azure's own variables, refusals and names, at Microsoft's emulator."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from batchwright.core.errors import BatchwrightError, JobError, StorageError
from batchwright.rundir import bucket, remote_file
from batchwright.rundir.manifest import existing_run, run_if_there
from batchwright.rundir.remote_file import RemoteFile
from batchwright.rundir.storage import Storage
from tests.support.azurite import ACCOUNT, KEY, AzureBlobs


def refusal(address: str) -> BatchwrightError:
    with pytest.raises(BatchwrightError) as caught:
        existing_run(address)
    return caught.value


def use(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Nothing of Azure in the environment but these."""
    for name in list(os.environ):
        if name.startswith("AZURE_"):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("endpoint", ["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"])
@pytest.mark.parametrize("secret", ["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"])
def test_variables_that_open_a_container(
    azure: AzureBlobs, monkeypatch: pytest.MonkeyPatch, endpoint: str, secret: str
) -> None:
    given = KEY if secret.endswith("KEY") else azure.sas_token()
    name = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT}
    use(monkeypatch, {**name, endpoint: f"{azure.url}/{ACCOUNT}", secret: given})
    storage = Storage(f"{azure.new_place()}/run")
    assert storage.create("a/b", b"1")
    assert not storage.create("a/b", b"2")
    assert (storage.names("a"), storage.read("a/b")) == (["b"], b"1")


def test_an_object_is_deleted(azure: AzureBlobs) -> None:
    """By a request of its own kind: Azurite does not take it with a signature, only with a key."""
    storage = Storage(f"{azure.new_place()}/run")
    storage.put("a/b", b"1")
    storage.put("a/c", b"1")
    storage.delete("a/b")
    storage.delete("a/b")
    assert storage.names("a") == ["c"]


def test_the_emulator_needs_no_keys(azure: AzureBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    emulator = {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": azure.url}
    use(monkeypatch, emulator)
    assert run_if_there(f"{azure.new_place()}/run") is None


def test_a_missing_container_is_named(azure: AzureBlobs) -> None:
    error = refusal("az://nobody-made-this/run")
    assert isinstance(error, JobError)
    assert "there is no bucket az://nobody-made-this" in error.message


@pytest.mark.parametrize(
    "wrong",
    [
        {"AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc="},
        {"AZURE_STORAGE_ACCOUNT_KEY": "no base64!"},
        {"AZURE_STORAGE_ACCOUNT_NAME": "nobody"},
        {"AZURE_STORAGE_ACCOUNT_KEY": "", "AZURE_STORAGE_SAS_TOKEN": "sv=2021-08-06&sig=abc"},
    ],
)
def test_wrong_keys_end_the_command_at_once(
    azure: AzureBlobs, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, str]
) -> None:
    use(monkeypatch, {k: v for k, v in {**azure.environment, **wrong}.items() if v})
    error = refusal(f"{azure.new_place()}/run")
    assert isinstance(error, JobError)
    assert "AuthorizationFailure: Server failed" in error.message or "Invalid" in error.message
    assert "RequestId" not in error.message
    assert "AZURE_STORAGE_ACCOUNT_NAME" in error.hint


def test_an_account_that_never_answers_may_have_another_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wrong account is a host that nobody has: no refusal will come."""
    nobody = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY}
    use(monkeypatch, {**nobody, "AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:9"})
    monkeypatch.setattr(bucket, "FIRST_PATIENCE_S", 0.0)
    error = refusal("az://container/run")
    assert isinstance(error, StorageError)
    assert "127.0.0.1:9" in error.message
    assert "AZURE_STORAGE_ACCOUNT_NAME" in error.hint


def test_a_file_goes_up_in_pieces_and_is_read_anywhere(
    azure: AzureBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "LARGEST_WHOLE_BYTES", 1 << 20)
    monkeypatch.setattr(bucket, "PIECE_BYTES", 1 << 20)
    data = random.Random(7).randbytes((5 << 20) + 123)
    (tmp_path / "file").write_bytes(data)
    storage = Storage(azure.new_place())
    storage.put("file", b"older")
    storage.send("file", tmp_path / "file")
    monkeypatch.setattr(remote_file, "LARGEST_BLOCK_BYTES", 1 << 18)
    file = RemoteFile(f"{storage.location}/file")
    for start in (0, 3 << 20, len(data) - 10, 12_345):
        file.seek(start)
        assert file.read(1000) == data[start : start + 1000]
    file.seek(0)
    assert file.readall() == data
