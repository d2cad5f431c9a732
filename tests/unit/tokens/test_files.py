"""A machine that cannot reach the hub finds out at once."""

from __future__ import annotations

import socket

import pytest

from batchwright.tokens import files


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
