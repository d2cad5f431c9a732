"""A web server on this machine that does what bad servers do."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class MediaServer:
    """Serves `files` by path; some paths misbehave.

    `/slow/S/…` waits S seconds, `/drip` sends a byte now and then without end, `/endless` sends all it
    can, `/cut` ends in the middle of its body, `/html` says that a page is an image, `/flaky` fails
    twice, `/status/N`, `/to?URL` redirects, `/loop` redirects to itself.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: Counter[str] = Counter()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def do_GET(self) -> None:
                outer.asked[self.path] += 1
                with contextlib.suppress(OSError):  # the client has had enough
                    outer.answer(self)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        kind, _, rest = request.path.lstrip("/").partition("/")
        if request.path.startswith("/to?"):
            send(request, 302, headers={"Location": request.path[4:]})
        elif kind == "slow":
            seconds, _, name = rest.partition("/")
            time.sleep(float(seconds))
            send(request, 200, self.files[name])
        elif kind in BAD:
            BAD[kind](request)
        elif kind == "status":
            send(request, int(rest), b"no")
        elif kind == "flaky":
            good = self.asked[request.path] > 2
            send(request, 200 if good else 503, self.files[rest] if good else b"")
        elif request.path.lstrip("/") in self.files:
            send(request, 200, self.files[request.path.lstrip("/")])
        else:
            send(request, 404, b"")


def send(
    request: BaseHTTPRequestHandler,
    status: int,
    body: bytes = b"",
    *,
    headers: dict[str, str] | None = None,
    length: int | None = None,
) -> None:
    request.send_response(status)
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body) if length is None else length))
    request.end_headers()
    request.wfile.write(body)


def endless(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    while True:
        request.wfile.write(b"\xff\xd8\xff" + b"x" * 65536)


def drip(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    for _ in range(400):
        request.wfile.write(b"x")
        time.sleep(0.05)


BAD: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {
    "endless": endless,
    "drip": drip,
    "cut": lambda request: send(request, 200, b"\xff\xd8\xff half", length=5000),
    "html": lambda request: send(
        request, 200, b"<html>not here</html>", headers={"Content-Type": "image/png"}
    ),
    "packed": lambda request: send(request, 200, b"xx", headers={"Content-Encoding": "gzip"}),
    "loop": lambda request: send(request, 302, headers={"Location": "/loop"}),
    "announced": lambda request: send(request, 200, b"", length=1 << 40),
}
