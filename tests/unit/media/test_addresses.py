from __future__ import annotations

import ipaddress
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.media.addresses import look_up, why_forbidden
from batchwright.media.problems import MediaProblem

PRIVATE = ["10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16",
           "100.64.0.0/10", "0.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4"]  # fmt: skip


def inside(network: str) -> st.SearchStrategy[ipaddress.IPv4Address]:
    return st.ip_addresses(network=network)  # type: ignore[return-value]


HIDDEN = st.sampled_from(PRIVATE).flatmap(inside)


@given(HIDDEN)
def test_no_private_address_is_asked_in_any_spelling(inner: ipaddress.IPv4Address) -> None:
    number = int(inner)
    assert why_forbidden(str(inner))
    assert why_forbidden(f"::ffff:{inner}")
    for net, shift in ((0x2002 << 112, 80), (int(ipaddress.IPv6Address("64:ff9b::")), 0)):
        assert why_forbidden(str(ipaddress.IPv6Address(net | number << shift)))


@given(st.ip_addresses(v=4).filter(lambda ip: ip.is_global and not ip.is_multicast))
def test_a_public_address_may_be_asked(ip: ipaddress.IPv4Address) -> None:
    assert why_forbidden(str(ip)) is None
    assert why_forbidden(f"::ffff:{ip}") is None


@given(st.ip_addresses(v=6))
def test_only_global_addresses_of_version_6_are_asked(ip: ipaddress.IPv6Address) -> None:
    if why_forbidden(str(ip)) is None:
        # Python calls an IPv4-mapped address global or not by what it maps.
        assert ip.is_global or ip.ipv4_mapped or ip.sixtofour or ip.teredo or int(ip) < 2**32


@pytest.mark.parametrize(
    "address", ["::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fec0::1", "ff02::1", "nonsense",
                "::127.0.0.1"],
)  # fmt: skip
def test_special_addresses_are_not_asked(address: str) -> None:
    assert why_forbidden(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]", "0"])
def test_every_way_to_write_this_machine_is_seen(host: str) -> None:
    with pytest.raises(MediaProblem) as caught:
        look_up(host.strip("[]"), 80, allow_private=False)
    assert caught.value.code == "media_forbidden"
    assert look_up(host.strip("[]"), 80, allow_private=True)


def test_one_bad_address_among_good_ones_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*_: Any, **__: Any) -> list[Any]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, ("93.184.216.34", 80)), (*kind, ("10.0.0.7", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    with pytest.raises(MediaProblem, match=r"10\.0\.0\.7 \(private\)"):
        look_up("rebind.example", 80, allow_private=False)
