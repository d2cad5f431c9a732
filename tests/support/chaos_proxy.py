"""A proxy that makes trouble between a client and a real server: refusals, faults, lost connections."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AbstractContextManager
from random import Random

import aiohttp
from aiohttp import web

from tests.support.in_a_thread import in_a_thread

# So that it is the client's window, and not a busy machine, that says how many are under way.
DELAY_S = 0.1


class ChaosProxy:
    """Passes requests on, but for some: by chance with a fixed seed, and when too many come at once.

    Args:
        target: `http://host:port` of the server.
        places: requests at a time; more are refused with 429.
        seed: of the chances.
    """

    def __init__(self, target: str, *, places: int, seed: int) -> None:
        self.target = target
        self.url = ""
        self._places = places
        self._random = Random(seed)
        self._session: aiohttp.ClientSession | None = None
        self.in_flight = 0
        self.at_once: list[int] = []  # requests under way, noted as each one comes
        self.did: Counter[str] = Counter()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        if request.method == "GET":
            return await self._pass_on(request, raw)
        trouble = self._trouble()
        self.did[trouble] += 1
        if trouble == "busy":
            body = {"error": {"message": "too many requests"}}
            return web.json_response(body, status=429, headers={"Retry-After": "1"})
        if trouble == "fault":
            return web.json_response({"error": {"message": "by chance"}}, status=500)
        if trouble == "drop before":
            return self._break(request)
        self.in_flight += 1
        self.at_once.append(self.in_flight)
        try:
            await asyncio.sleep(DELAY_S)
            answer = await self._pass_on(request, raw)
        finally:
            self.in_flight -= 1
        return self._break(request) if trouble == "drop after" else answer

    def _trouble(self) -> str:
        if self.in_flight >= self._places:
            return "busy"
        chance = self._random.random()
        for limit, name in ((0.02, "fault"), (0.04, "drop before"), (0.06, "drop after")):
            if chance < limit:
                return name
        return "busy" if chance > 0.995 else "none"

    async def _pass_on(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        assert self._session is not None
        url = self.target + request.path_qs
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                request.method, url, data=raw or None, headers=headers
            ) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, OSError):
            self.did["server away"] += 1
            return web.json_response({"error": {"message": "no server"}}, status=502)
        kind = answer.headers.get("Content-Type", "").partition(";")[0]
        return web.Response(body=body, status=answer.status, content_type=kind)

    @staticmethod
    def _break(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def open(self) -> web.AppRunner:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    async def close(self, runner: web.AppRunner) -> None:
        await runner.cleanup()
        assert self._session is not None
        await self._session.close()


def chaos(target: str, *, places: int, seed: int = 7) -> AbstractContextManager[ChaosProxy]:
    """A proxy for the time of a test, in a thread of its own."""
    return in_a_thread(ChaosProxy(target, places=places, seed=seed))
