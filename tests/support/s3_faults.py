"""A proxy before a real object store that cuts connections, throttles, and breaks answers off."""

from __future__ import annotations

import io
from collections import Counter
from contextlib import AbstractContextManager
from random import Random

import aiohttp
from aiohttp import web
from yarl import URL

from tests.support.in_a_thread import in_a_thread

SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)


class FaultyProxy:
    """Passes requests on; each fault befalls its share of them, by chance with a fixed seed.

    Args:
        target: `http://host:port` of the server.
        share: of the requests that each kind of fault befalls.
        seed: of the chances.
    """

    def __init__(self, target: str, *, share: float, seed: int) -> None:
        self.target = target
        self.url = ""
        self._share = share
        self._random = Random(seed)
        self._session: aiohttp.ClientSession | None = None
        self.did: Counter[str] = Counter()

    def _fault(self, method: str) -> str:
        kinds = ["cut before", "cut after", "slow down"] + (["half"] if method == "GET" else [])
        place = int(self._random.random() / self._share)
        return kinds[place] if place < len(kinds) else "none"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        fault = self._fault(request.method)
        self.did[fault] += 1
        raw = await request.read()
        if fault == "slow down":
            return web.Response(status=503, body=SLOW_DOWN, content_type="application/xml")
        if fault == "cut before":
            return self._cut(request)
        assert self._session is not None
        url = URL(self.target + request.raw_path, encoded=True)
        # The signature is over the host that the client knows.
        headers = {k: v for k, v in request.headers.items() if k.lower() != "transfer-encoding"}
        try:
            async with self._session.request(
                request.method,
                url,
                data=io.BytesIO(raw) if raw else None,
                headers=headers,
                allow_redirects=False,
            ) as answer:
                body = await answer.read()
                kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP_BY_HOP}
                status = answer.status
        except (aiohttp.ClientError, OSError) as error:
            self.did[f"server: {type(error).__name__}"] += 1
            return self._cut(request)
        if fault == "cut after":
            return self._cut(request)
        if fault == "half" and len(body) > 1:
            return await self._half(request, status, kept, body)
        if request.method == "HEAD":
            return web.Response(
                status=status,
                headers={**kept, "Content-Length": answer.headers.get("Content-Length", "0")},
            )
        return web.Response(status=status, headers=kept, body=body)

    async def _half(
        self, request: web.Request, status: int, headers: dict[str, str], body: bytes
    ) -> web.StreamResponse:
        """An answer that promises all and breaks off."""
        response = web.StreamResponse(status=status, headers=headers)
        response.content_length = len(body)
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
        return self._cut(request)

    @staticmethod
    def _cut(request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    async def open(self) -> web.AppRunner:
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def close(self, runner: web.AppRunner) -> None:
        await runner.cleanup()
        assert self._session is not None
        await self._session.close()


_HOP_BY_HOP = {"content-length", "transfer-encoding", "connection", "date", "server"}


def faults(target: str, *, share: float, seed: int = 7) -> AbstractContextManager[FaultyProxy]:
    """A proxy for the time of a test, in a thread of its own."""
    return in_a_thread(FaultyProxy(target, share=share, seed=seed))
