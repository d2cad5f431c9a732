"""HTTP through aiohttp: one pool of connections, and every failure in words."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from batchwright.core.errors import MissingExtra
from batchwright.engines.http_retry import Failure, Kind, failure_of_status
from batchwright.engines.openai_options import OpenAiOptions

KEEP_ALIVE_S = 30.0
HIDDEN = "***"


class Reply:
    """An answer with status 200, or why there is none.

    Attributes:
        raw: the body.
        failure: None for an answer.
        used_tokens: prompt and answer, as the server counted them; 0 if it did not.
    """

    __slots__ = ("failure", "raw", "used_tokens")

    def __init__(self, raw: bytes = b"", failure: Failure | None = None) -> None:
        self.raw = raw
        self.failure = failure
        self.used_tokens = 0

    def note_usage(self, body: Mapping[str, Any]) -> None:
        """Read the server's own count."""
        usage = body.get("usage")
        total = usage.get("total_tokens") if isinstance(usage, dict) else None
        self.used_tokens = total if isinstance(total, int) else 0


class Transport(Protocol):
    """What the client needs of HTTP."""

    async def post(self, url: str, body: dict[str, Any]) -> Reply:
        """Send a JSON object and wait for the answer; never raises for what a network does."""

    async def get(self, url: str) -> Reply:
        """Ask for a page."""


def import_aiohttp() -> Any:
    """The aiohttp module. Raises MissingExtra."""
    try:
        return importlib.import_module("aiohttp")
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"the openai engine needs aiohttp ({error})", "pip install 'batchwright[http]'"
        ) from None


class HttpTransport:
    """A session of aiohttp. Made and used in one event loop.

    Args:
        options: time-outs.
        headers: sent with each request.
        secrets: texts that a message must not show, even if a server repeats them.
        model: the name that is sent, to tell an unknown model from an unknown path.
    """

    def __init__(
        self, options: OpenAiOptions, headers: Mapping[str, str], secrets: tuple[str, ...],
        model: str,
    ) -> None:  # fmt: skip
        self._aiohttp = aiohttp = import_aiohttp()
        self._secrets = secrets
        self._model = model
        self._timeout_s = options.timeout_s
        # No limit here: how many are in flight is decided per endpoint, by what it takes.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            headers={**headers, "Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(
                total=options.timeout_s, sock_connect=options.connect_timeout_s
            ),
            trust_env=True,
        )

    async def post(self, url: str, body: dict[str, Any]) -> Reply:
        """Send a JSON object."""
        return await self._send("POST", url, orjson.dumps(body))

    async def get(self, url: str) -> Reply:
        """Ask for a page."""
        return await self._send("GET", url, None)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def _send(self, method: str, url: str, data: bytes | None) -> Reply:
        try:
            async with self._session.request(
                method, url, data=data, allow_redirects=False
            ) as response:
                raw = await response.read()
        except (self._aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError, OSError) as e:
            return Reply(failure=self._failure(e))
        if response.status == 200:
            return Reply(raw)
        failure = failure_of_status(
            response.status, response.headers, raw, model=self._model, now=time.time()
        )
        return Reply(raw, failure._replace(message=self._without_secrets(failure.message)))

    def _failure(self, error: BaseException) -> Failure:
        aiohttp = self._aiohttp
        text = self._without_secrets(str(error) or type(error).__name__)
        if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.InvalidURL):
            return Failure(Kind.JOB, text)
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return Failure(Kind.AWAY, text)
        if isinstance(error, TimeoutError):
            late = f"no answer within {self._timeout_s:g} s"
            return Failure(Kind.FAULT, late, overload=True, timeout=True)
        return Failure(Kind.FAULT, f"the connection broke: {text}")

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text
