"""The engine that is somewhere else: any endpoint, or several, that speaks OpenAI's API."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import Future
from random import Random
from typing import Any, TypeVar

from batchwright.core.errors import EngineError, JobError
from batchwright.core.outcomes import Outcome
from batchwright.core.ports import EngineGauges, EngineInfo, EngineSettings
from batchwright.core.records import Request
from batchwright.engines.http_endpoints import Endpoint
from batchwright.engines.http_metrics import ServerGauges, metrics_url, parse_metrics
from batchwright.engines.http_retry import Failure, Kind, wait_s
from batchwright.engines.http_transport import HttpTransport, import_aiohttp
from batchwright.engines.openai_client import Client, given_up, run_error
from batchwright.engines.openai_options import OpenAiOptions, parse_options, secrets_of
from batchwright.engines.openai_response import BrokenAnswer, parse_body

T = TypeVar("T")

# `step` waits so long for a first outcome, at least: its caller calls it again and again.
LEAST_WAIT_S = 0.02

# Nobody sees a server's steps. One such span stands for a step: a token of a row, about.
STEP_S = 0.02

METRICS_EVERY_S = 2.0
STOP_TIMEOUT_S = 3.0


class OpenAiEngine:
    """Sends each row to an endpoint. The requests run in an event loop in a thread of its own."""

    def __init__(self) -> None:
        self._finished: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._live: set[int] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._work: Future[None] | None = None
        self._client: Client | None = None
        self._transport: HttpTransport | None = None
        self._servers: dict[str, ServerGauges] = {}
        self._started_at = 0.0
        self._ended = asyncio.Event()

    def preload(self, settings: EngineSettings) -> None:
        """The endpoint is somebody else's; what is imported here is small."""

    def start(self, settings: EngineSettings) -> EngineInfo:
        """Wait until an endpoint is there and knows the model.

        Raises:
            JobError: an option, the key or the model is wrong.
            EngineError: no endpoint came up in time.
            MissingExtra: aiohttp is not installed.
        """
        options = parse_options(settings.options)
        headers, secrets = secrets_of(options)
        import_aiohttp()
        self._loop = loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="http", daemon=True)
        self._thread.start()

        async def open_client() -> None:
            self._transport = HttpTransport(options, headers, secrets, settings.model)
            self._client = Client(
                options, settings.model, settings.embedding, self._finished.put,
                self._transport, Random(),  # noqa: S311 (jitter)
            )  # fmt: skip
            await find_endpoint(self._client.endpoints, self._transport, options, settings.model)

        try:
            self._wait(open_client())
        except (JobError, EngineError):
            self.stop()
            raise
        self._work = asyncio.run_coroutine_threadsafe(self._run(), loop)
        self._started_at = time.monotonic()
        return EngineInfo("openai", "v1", "none", 0, os.getpid())

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests."""
        client, loop = self._running()
        self._live.update(one.row for one in requests)
        loop.call_soon_threadsafe(client.add, list(requests))

    def abort(self, rows: Iterable[int]) -> None:
        """Forget these rows."""
        client, loop = self._running()
        known = self._live.intersection(rows)
        self._live -= known
        loop.call_soon_threadsafe(client.drop, known)

    def step(self, timeout_s: float) -> list[Outcome]:
        """Wait for outcomes.

        Raises:
            JobError: the endpoint refuses the whole job: the key, the model, the address.
            EngineError: no endpoint has answered for too long.
        """
        outcomes = self._take(max(timeout_s, LEAST_WAIT_S))
        if not outcomes and self._work is not None and self._work.done():
            self._work.result()
        return outcomes

    def gauges(self) -> EngineGauges:
        """Read the client, and what the servers last said of themselves."""
        if self._client is None:
            return EngineGauges()
        running = self._client.in_flight
        servers = list(self._servers.values())
        return EngineGauges(
            running=running,
            waiting=max(0, len(self._live) - running),
            kv_use=max((one.kv_use for one in servers), default=0.0),
            preemptions=sum(one.preemptions for one in servers),
            steps=int((time.monotonic() - self._started_at) / STEP_S),
            prompt_tokens=self._client.totals.prompt_tokens,
            output_tokens=self._client.totals.output_tokens,
        )

    def stop(self) -> None:
        """Break off what is under way, and close the connections."""
        loop, self._loop = self._loop, None
        self._live.clear()
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._close(), loop).result(STOP_TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        loop.close()
        self._client = self._transport = self._work = None

    def _take(self, wait_at_most_s: float) -> list[Outcome]:
        """What has finished; waits for the first."""
        outcomes: list[Outcome] = []
        try:
            found = self._finished.get(timeout=wait_at_most_s)
            while True:
                if found.row in self._live:
                    self._live.remove(found.row)
                    outcomes.append(found)
                found = self._finished.get_nowait()
        except queue.Empty:
            return outcomes

    def _running(self) -> tuple[Client, asyncio.AbstractEventLoop]:
        if self._client is None or self._loop is None:
            raise EngineError("the engine is not started")
        return self._client, self._loop

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None, "start made it"
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _run(self) -> None:
        client, transport = self._client, self._transport
        assert client is not None, "start made it"
        assert transport is not None, "start made it"
        watchers = [
            asyncio.create_task(self._watch(endpoint, transport)) for endpoint in client.endpoints
        ]
        try:
            await client.run()
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
            self._ended.set()

    async def _watch(self, endpoint: Endpoint, transport: HttpTransport) -> None:
        """Read a server's gauges, as long as it has some."""
        known = False
        while True:
            reply = await transport.get(metrics_url(endpoint.url))
            if reply.failure is None:
                gauges = parse_metrics(reply.raw.decode(errors="replace"))
                if gauges is None:
                    return
                known = True
                self._servers[endpoint.url] = gauges
                endpoint.window.server_says(gauges.running, gauges.waiting)
            elif not known and reply.failure.kind is not Kind.AWAY:
                return
            await asyncio.sleep(METRICS_EVERY_S)

    async def _close(self) -> None:
        if self._work is not None:
            self._work.cancel()
            with contextlib.suppress(TimeoutError):  # it had not begun
                await asyncio.wait_for(self._ended.wait(), STOP_TIMEOUT_S / 3)
        if self._client is not None:
            await self._client.close()
        if self._transport is not None:
            await self._transport.close()


async def find_endpoint(
    endpoints: Sequence[Endpoint], transport: HttpTransport, options: OpenAiOptions, model: str
) -> None:
    """Return when one endpoint is there; the others may come later.

    Raises:
        JobError: one of them refuses the key, or does not know the model.
        EngineError: none came in time.
    """
    deadline = time.monotonic() + options.give_up_after_s
    attempt = 0
    random = Random()  # noqa: S311 (jitter)
    while True:
        checks = [look_at(endpoint, transport, options, model) for endpoint in endpoints]
        failures = await asyncio.gather(*checks)
        if any(failure is None for failure in failures):
            return
        failure = failures[0]
        assert failure is not None, "none of them is"
        if time.monotonic() > deadline:
            raise given_up(
                failure, endpoints[0].url, f"gave no answer for {options.give_up_after_s:g} s"
            )
        await asyncio.sleep(min(wait_s(attempt, failure, random), options.give_up_after_s))
        attempt += 1


async def look_at(
    endpoint: Endpoint, transport: HttpTransport, options: OpenAiOptions, model: str
) -> Failure | None:
    """Whether an endpoint is there; what keeps it from answering, else. Raises JobError."""
    reply = await transport.get(f"{endpoint.url}/models")
    failure = reply.failure
    if failure is not None:
        if failure.kind is Kind.JOB and failure.status in (0, 401, 403):
            raise run_error(failure, endpoint.url)
        # Some servers have no such list: the first row will tell.
        return failure if failure.kind in (Kind.AWAY, Kind.FAULT, Kind.RATE) else None
    names = model_names(reply.raw)
    if options.dialect == "vllm" and names and model not in names:
        raise JobError(
            f"the endpoint {endpoint.url} has no model {model}",
            f"It has: {', '.join(names[:10])}. Set model.name to one of them.",
        )
    return None


def model_names(raw: bytes) -> list[str]:
    """The names in a list of models; empty if it is none."""
    try:
        data = parse_body(raw).get("data")
    except BrokenAnswer:
        return []
    if not isinstance(data, list):
        return []
    return [str(one["id"]) for one in data if isinstance(one, dict) and "id" in one]
