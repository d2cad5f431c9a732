"""A small HTTP server that answers like Qdrant, for want of the real one: it holds points by their id."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class FakeQdrant:
    """What the server holds, and the trouble that it makes.

    Attributes:
        max_request_bytes: larger requests are answered with 400.
        lose_after: points after which the connection is lost once, before the reply.
        busy: so many writes are answered with 503 first.
        refuse_ids: a write with one of these is answered with 422.
    """

    url: str = ""
    max_request_bytes: int = 32 << 20
    lose_after: int | None = None
    busy: int = 0
    refuse_ids: frozenset[Any] = frozenset()
    config: dict[str, Any] = field(default_factory=dict)
    collections: dict[str, dict[Any, dict[str, Any]]] = field(default_factory=dict)
    request_bytes: list[int] = field(default_factory=list)
    api_keys: set[str | None] = field(default_factory=set)

    def answer(self, method: str, path: list[str], body: Any) -> tuple[int, Any]:
        """Status and result of a request."""
        name = path[1] if len(path) > 1 else ""
        points = self.collections.get(name)
        if path[2:] == ["exists"]:
            return 200, {"exists": points is not None}
        if path[2:] == ["points"] and method == "PUT" and points is not None:
            return self._upsert(points, body)
        if path[2:] == ["points", "count"] and points is not None:
            return 200, {"count": len(points)}
        if len(path) == 2 and method == "PUT":
            self.collections[name] = {}
            self.config[name] = body
            return 200, True
        if len(path) == 2 and method == "PATCH":
            self.config[name]["hnsw_config"] |= body["hnsw_config"]
            return 200, True
        if len(path) == 2 and method == "GET" and points is not None:
            return 200, self._info(name)
        return 404, "not found"

    def _upsert(self, points: dict[Any, Any], body: Any) -> tuple[int, Any]:
        batch = body["batch"]
        if self.busy:
            self.busy -= 1
            return 503, "busy"
        if self.refuse_ids.intersection(batch["ids"]):
            return 422, "a value that it does not take"
        for one, vector, payload in zip(
            batch["ids"], batch["vectors"], batch["payloads"], strict=True
        ):
            points[one] = {"vector": vector, "payload": payload}
            if self.lose_after is not None:
                self.lose_after -= 1
                if self.lose_after == 0:
                    self.lose_after = None
                    raise ConnectionAbortedError
        return 200, {"operation_id": 1, "status": "completed"}

    def _info(self, name: str) -> dict[str, Any]:
        given = self.config[name]
        hnsw = {"m": 16, "ef_construct": 100, "full_scan_threshold": 10_000}
        hnsw |= {k: v for k, v in (given.get("hnsw_config") or {}).items() if v is not None}
        optimizers = {
            "deleted_threshold": 0.2, "vacuum_min_vector_number": 1000, "default_segment_number": 0,
            "flush_interval_sec": 5,
        }  # fmt: skip
        return {
            "status": "green", "optimizer_status": "ok", "segments_count": 1, "points_count": 0,
            "config": {"params": {"vectors": given["vectors"]}, "hnsw_config": hnsw,
                       "optimizer_config": optimizers},
            "payload_schema": {},
        }  # fmt: skip


@contextmanager
def fake_qdrant(**trouble: Any) -> Iterator[FakeQdrant]:
    """Run the server until the end of the block."""
    state = FakeQdrant(**trouble)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(size)
            state.api_keys.add(self.headers.get("api-key"))
            path = self.path.partition("?")[0].strip("/").split("/")
            try:
                if size > state.max_request_bytes:
                    status, result = 400, f"request of {size} bytes is too large"
                else:
                    if path[2:] == ["points"]:
                        state.request_bytes.append(size)
                    status, result = state.answer(
                        self.command, path, json.loads(raw) if raw else None
                    )
            except ConnectionAbortedError:
                self.close_connection = True
                return
            good = status == 200
            body = (
                {"result": result, "status": "ok", "time": 0.0}
                if good
                else {"status": {"error": result}}
            )
            sent = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_PUT = do_POST = do_PATCH = handle_any

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state.url = f"qdrant://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
