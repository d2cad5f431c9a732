"""A proxy of a test in a thread of its own, for as long as the test needs it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from aiohttp import web


class Proxy(Protocol):
    async def open(self) -> web.AppRunner: ...

    async def close(self, runner: web.AppRunner) -> None: ...


AnyProxy = TypeVar("AnyProxy", bound=Proxy)


@contextmanager
def in_a_thread(proxy: AnyProxy) -> Iterator[AnyProxy]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(proxy.open(), loop).result(10)
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(proxy.close(runner), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
