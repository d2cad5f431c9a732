"""Which network addresses may be asked: those of the public internet, unless told otherwise."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from batchwright.media.problems import MediaProblem

# Networks of IPv6 that carry an IPv4 address in their last 32 bits.
_IPV4_AT_THE_END = (IPv6Network("64:ff9b::/96"), IPv6Network("::/96"))


def why_forbidden(address: str) -> str | None:
    """Why an address may not be asked; None if it is one of the public internet.

    An IPv6 address that carries an IPv4 address counts as that too: a gateway would go there.
    """
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return "no network address"
    if isinstance(ip, IPv6Address):
        inner = _inner(ip)
        if inner is not None:
            return why_forbidden(str(inner))
        if ip.is_site_local:
            return "private"
    kinds = {
        "unspecified": ip.is_unspecified, "loopback": ip.is_loopback,
        "link-local": ip.is_link_local, "multicast": ip.is_multicast, "private": ip.is_private,
        "reserved": ip.is_reserved or not ip.is_global,
    }  # fmt: skip
    return next((kind for kind, is_so in kinds.items() if is_so), None)


def _inner(ip: IPv6Address) -> IPv4Address | None:
    """The IPv4 address behind a mapped, translated or tunnelled IPv6 address."""
    if ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    if ip.sixtofour is not None:
        return ip.sixtofour
    if ip.teredo is not None:
        return ip.teredo[1]
    if ip.is_loopback or ip.is_unspecified:
        return None  # `::1` and `::` lie in ::/96, and are known by themselves
    if any(ip in network for network in _IPV4_AT_THE_END):
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    return None


def look_up(host: str, port: int, *, allow_private: bool) -> list[str]:
    """The addresses of a host, each of them allowed.

    The caller connects to one of these and not to the name: a second look-up might give another.

    Raises:
        MediaProblem: there is no such host, or one of its addresses is forbidden.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        may_pass = getattr(error, "errno", None) == socket.EAI_AGAIN
        message = f"the host {host} is not known: {error}"
        raise MediaProblem("media_unreachable", message, may_pass=may_pass) from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if allow_private:
        return addresses
    for address in addresses:
        why = why_forbidden(address)
        if why is not None:
            raise MediaProblem(
                "media_forbidden",
                f"{host} has the address {address} ({why}); media.allow_private_addresses is off",
            )
    return addresses
