"""A small server that speaks OpenAI's API and answers as it is told, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Answer:
    """What comes back: a status with a body, after a while; or a connection that breaks.

    With `cut`, only so many bytes of the body come.
    """

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    after_s: float = 0.0
    drop: bool = False
    cut: int | None = None
    text: str | None = None


@dataclass
class Call:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class FakeEndpoint:
    """Answers each POST with what `reply(call)` says, and lists its models."""

    def __init__(self, reply: Callable[[Call], Answer], models: list[str] | None) -> None:
        self.reply = reply
        self.models = models
        self.calls: list[Call] = []
        self.metrics = ""
        self.in_flight = self.most_in_flight = 0
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return self._look(request)
        call = Call(request.path, dict(request.headers), await request.json())
        self.calls.append(call)
        answer = self.reply(call)
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        try:
            await asyncio.sleep(answer.after_s)
        finally:
            self.in_flight -= 1
        if answer.drop:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if answer.text is not None:
            return web.Response(text=answer.text, status=answer.status, headers=answer.headers)
        made = web.json_response(answer.body, status=answer.status, headers=answer.headers)
        if answer.cut is None:
            return made
        assert isinstance(made.body, bytes)
        stream = web.StreamResponse(headers={"Content-Length": str(len(made.body))})
        await stream.prepare(request)
        await stream.write(made.body[: answer.cut])
        assert request.transport is not None
        request.transport.close()
        return stream

    def _look(self, request: web.Request) -> web.Response:
        if request.path == "/metrics" and self.metrics:
            return web.Response(text=self.metrics)
        if request.path == "/v1/models" and self.models is not None:
            return web.json_response({"data": [{"id": name} for name in self.models]})
        return web.json_response({"error": {"message": "no such page"}}, status=404)


@contextmanager
def serving(
    reply: Callable[[Call], Answer], models: list[str] | None = None, port: int = 0
) -> Iterator[FakeEndpoint]:
    """A server for the time of a test."""
    endpoint = FakeEndpoint(reply, models)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> web.AppRunner:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", endpoint.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    runner = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield endpoint
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def chat_answer(text: str, **more: Any) -> dict[str, Any]:
    """The body of a chat completion with one answer."""
    message = {"role": "assistant", "content": text, **more.pop("message", {})}
    choice = {"index": 0, "message": message, "finish_reason": "stop", **more.pop("choice", {})}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return {"object": "chat.completion", "choices": [choice], "usage": usage, **more}


def text_answer(text: str, **choice: Any) -> dict[str, Any]:
    """The body of a text completion with one answer."""
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return {
        "choices": [{"index": 0, "text": text, "finish_reason": "stop", **choice}],
        "usage": usage,
    }


def error_body(message: str, **fields: Any) -> dict[str, Any]:
    """The body of an error in OpenAI's form."""
    return {"error": {"message": message, "type": "invalid_request_error", **fields}}
