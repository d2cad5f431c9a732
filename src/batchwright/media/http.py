"""Fetches over http and https: to a checked address, within a time, a size and few redirects."""

from __future__ import annotations

import io
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from batchwright.core.media import MediaLimits
from batchwright.media.addresses import look_up
from batchwright.media.problems import MediaProblem

_READ_BYTES = 1 << 16
_REDIRECTS = (301, 302, 303, 307, 308)
_GONE = (404, 410)
_MAY_PASS = (408, 425, 429)

_HEADERS = {
    "User-Agent": "batchwright",
    "Accept": "image/*, audio/*, */*;q=0.5",
    "Accept-Encoding": "identity",  # a packed body could hide a huge one
    "Connection": "close",
}


def fetch_url(
    url: str, limits: MediaLimits, monotonic: Callable[[], float] = time.monotonic
) -> bytes:
    """The body behind a URL, redirects followed.

    Proxies of the environment are not used: the address that is checked here has to be the one
    that is asked.

    Raises:
        MediaProblem: with the code of what is wrong.
    """
    deadline = _Deadline(limits.timeout_s, monotonic)
    for _ in range(limits.max_redirects + 1):
        parts = _split(url)
        try:
            found = _ask(parts, limits, deadline)
        except TimeoutError:
            message = f"{url} had not come after {limits.timeout_s:g} s"
            raise MediaProblem("media_timeout", message, may_pass=True) from None
        except ssl.SSLCertVerificationError as error:
            raise MediaProblem("media_unreachable", f"{url}: {error.verify_message}") from None
        except (OSError, HTTPException) as error:
            message = f"{url}: {type(error).__name__}: {error}"
            raise MediaProblem("media_unreachable", message, may_pass=True) from None
        if isinstance(found, bytes):
            return found
        url = urljoin(url, found)
    raise MediaProblem("media_unreachable", f"{url}: more than {limits.max_redirects} redirects")


class _Deadline:
    """The seconds that are left for a fetch, however slowly its bytes drip in."""

    def __init__(self, timeout_s: float, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._end = monotonic() + timeout_s

    def left_s(self) -> float:
        left = self._end - self._monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        allowed = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise MediaProblem("bad_media", f"{url[:200]!r} is no URL: {error}") from None
    if not allowed:
        raise MediaProblem("media_forbidden", f"{url[:200]!r}: only http and https are fetched")
    return parts


def _ask(parts: SplitResult, limits: MediaLimits, deadline: _Deadline) -> bytes | str:
    """The body, or where a redirect leads to."""
    host = str(parts.hostname)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    addresses = look_up(host, port, allow_private=limits.allow_private_addresses)
    # The connection is made here, to an address that was checked; http.client only speaks on it.
    sock = _connect(addresses, host if secure else None, port, deadline)
    connection = (HTTPSConnection if secure else HTTPConnection)(host, port)
    connection.sock = _Timed(sock, deadline)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", _quoted(target), headers=_HEADERS)
        return _read(connection.getresponse(), parts.geturl(), limits)
    finally:
        sock.close()


def _quoted(target: str) -> str:
    """Characters that a request line cannot hold, as percent signs."""
    return "".join(
        char if "!" <= char <= "~" else "".join(f"%{byte:02X}" for byte in char.encode())
        for char in target
    )


def _connect(
    addresses: Sequence[str], server_name: str | None, port: int, deadline: _Deadline
) -> socket.socket:
    """A connection to the first address that answers; with TLS where a name is given."""
    problem: OSError = OSError("no address")
    for address in addresses:
        try:
            plain = socket.create_connection((address, port), timeout=deadline.left_s())
        except TimeoutError:
            raise
        except OSError as error:
            problem = error
            continue
        if server_name is None:
            return plain
        try:
            plain.settimeout(deadline.left_s())
            return _tls().wrap_socket(plain, server_hostname=server_name)
        except BaseException:
            plain.close()
            raise
    raise problem


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _read(response: HTTPResponse, url: str, limits: MediaLimits) -> bytes | str:
    status = response.status
    location = response.headers.get("Location")
    if status in _REDIRECTS and location:
        return location
    if status in _GONE:
        raise MediaProblem("media_not_found", f"{url}: HTTP status {status}")
    if status != 200:
        may_pass = status in _MAY_PASS or status >= 500
        message = f"{url}: HTTP status {status}"
        raise MediaProblem("media_unreachable", message, may_pass=may_pass)
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise MediaProblem("bad_media", f"{url}: the server sends it packed, unasked")
    announced = response.length
    if announced is not None and announced > limits.max_bytes:
        raise _too_large(url, announced, limits)
    body = _body(response, url, limits)
    if announced is not None and len(body) < announced:
        message = f"{url}: the body ended after {len(body)} of {announced} bytes"
        raise MediaProblem("media_unreachable", message, may_pass=True)
    return body


def _body(response: HTTPResponse, url: str, limits: MediaLimits) -> bytes:
    body = bytearray()
    while data := response.read(_READ_BYTES):
        body += data
        if len(body) > limits.max_bytes:
            raise _too_large(url, len(body), limits)
    return bytes(body)


def _too_large(url: str, size: int, limits: MediaLimits) -> MediaProblem:
    return MediaProblem(
        "media_too_large", f"{url}: {size} bytes or more; media.max_bytes is {limits.max_bytes}"
    )


class _Timed:
    """A socket whose every operation ends with the fetch's deadline.

    A socket's own timeout begins again with each byte: a server that sends one a second would
    hold a worker for hours.
    """

    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(self._deadline.left_s())
        self._sock.sendall(data)

    def makefile(self, mode: str, *_: Any) -> io.BufferedReader:
        assert mode == "rb", "http.client reads answers only"
        return io.BufferedReader(_TimedReader(self._sock, self._deadline))

    def close(self) -> None:
        """Nothing: http.client lets go of it before the body is read; who opened it closes it."""


class _TimedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        super().__init__()
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._deadline.left_s())
        return self._sock.recv_into(buffer)
