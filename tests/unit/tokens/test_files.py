"""A machine that cannot reach the hub finds out at once; what is there is found out unfetched."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchwright.core.errors import JobError
from batchwright.tokens import files
from batchwright.tokens.files import has_safetensors


def no_such_host(*_: object) -> None:
    raise socket.gaierror(-2, "Name or service not known")


@pytest.mark.parametrize(
    ("environ", "cut_off"),
    [
        ({}, True),
        ({"HF_ENDPOINT": "https://mirror.example"}, True),
        ({"HTTPS_PROXY": "http://proxy:3128"}, False),
        ({"HF_HUB_OFFLINE": "0"}, False),
    ],
)
def test_without_an_address_the_hub_is_out_of_reach(
    environ: dict[str, str], cut_off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", no_such_host)
    assert files._is_cut_off(environ) is cut_off


def test_a_hub_with_an_address_is_asked() -> None:
    assert not files._is_cut_off({"HF_ENDPOINT": "http://127.0.0.1:9"})


@pytest.mark.parametrize(
    ("there", "found"),
    [
        ({"model.safetensors"}, True),
        ({"model.safetensors.index.json", "model-00001-of-00002.safetensors"}, True),
        ({"pytorch_model.bin", "config.json"}, False),
    ],
)
def test_the_hub_is_asked_for_safetensors(
    there: set[str], found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def has_file(name: str, file: str, revision: str, *, local_files_only: bool) -> bool:
        asked.append((name, revision))
        return not local_files_only and file in there

    monkeypatch.setattr("transformers.utils.hub.has_file", has_file)
    assert has_safetensors("some/bert", "abc") is found
    assert set(asked) == {("some/bert", "abc")}


def test_a_repository_that_the_hub_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise OSError("gated")

    monkeypatch.setattr("transformers.utils.hub.has_file", refuse)
    with pytest.raises(JobError, match="the hub does not give it: gated"):
        has_safetensors("some/bert", None)


def test_a_model_in_the_cache_needs_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def has_file(*_: object, local_files_only: bool, **__: object) -> bool:
        assert local_files_only
        return True

    monkeypatch.setattr("transformers.utils.hub.has_file", has_file)
    assert has_safetensors("some/bert", None)


def test_a_proxy_that_refuses_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.utils import hub

    proxy_error: Any = vars(hub)["httpx"].ProxyError

    def refuse(*_: object, **__: object) -> bool:
        raise proxy_error("403 Forbidden")

    monkeypatch.setattr("transformers.utils.hub.has_file", refuse)
    with pytest.raises(JobError, match="403 Forbidden"):
        has_safetensors("some/bert", None)


def test_a_folder_is_looked_into(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    assert not has_safetensors(str(tmp_path), None)
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    assert has_safetensors(str(tmp_path), None)


def chained(*errors: BaseException) -> OSError:
    """An error of transformers, with what it comes from."""
    first = last = OSError("we could not load it")
    for error in errors:
        last.__cause__ = error  # type: ignore[assignment]
        last = error  # type: ignore[assignment]
    return first


def answered(code: int) -> OSError:
    error = OSError(f"{code}")
    error.response = SimpleNamespace(status_code=code)  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "offline", "exit_code"),
    [
        (chained(FileNotFoundError("not in the cache"), ConnectionRefusedError()), False, 75),
        (chained(TimeoutError()), False, 75),
        (chained(answered(429)), False, 75),
        (chained(answered(503)), False, 75),
        (chained(answered(401)), False, 2),
        (chained(answered(404)), False, 2),
        (chained(FileNotFoundError("not in the cache")), False, 2),
        (chained(ConnectionRefusedError()), True, 2),
    ],
    ids=["refused", "slow", "too many", "server", "token", "no model", "no file", "wanted offline"],
)
def test_a_hub_that_does_not_answer_is_no_wrong_job(
    error: OSError, offline: bool, exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "prefer_cache_if_cut_off", lambda: False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    if offline:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert files.not_reachable("some/model", error).exit_code == exit_code


def test_a_hub_without_an_address_may_have_one_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "prefer_cache_if_cut_off", lambda: True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as that function leaves it
    assert files.not_reachable("some/model", chained(FileNotFoundError())).exit_code == 75
