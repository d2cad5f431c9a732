"""Fixtures that every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_bert import make_tiny_bert
from tests.support.tiny_model import make_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random Qwen2 model with a ChatML template; read only."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random BERT embedding model; read only."""
    return make_tiny_bert(tmp_path_factory.mktemp("models") / "bert")
