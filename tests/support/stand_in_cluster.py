"""A small API server: keeps objects, answers as Kubernetes does, and shows what it was asked."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml

Object = dict[str, Any]

# Group and version of what it knows, by the plural that paths have.
CORE = {"pods", "events", "services", "secrets", "configmaps", "resourcequotas", "serviceaccounts",
        "persistentvolumeclaims", "namespaces", "nodes"}  # fmt: skip
KNOWN = {
    *(f"api/v1/{plural}" for plural in CORE),
    "apis/batch/v1/jobs", "apis/apps/v1/deployments", "apis/ray.io/v1/rayjobs",
    "apis/resource.k8s.io/v1/resourceclaimtemplates", "apis/resource.k8s.io/v1/deviceclasses",
    "apis/scheduling.k8s.io/v1/priorityclasses",
}  # fmt: skip
TOKEN = "a-token-of-the-tests"


class StandIn:
    """What the server holds.

    Attributes:
        objects: by (kind path, namespace, name).
        asked: method, path and query of each request.
        refusals: (method, kind path) to status and message.
        logs: pod name to text.
        faults: so many next requests are answered with 503.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.refusals: dict[tuple[str, str], tuple[int, str]] = {}
        self.logs: dict[str, str] = {}
        self.faults = 0
        self._ids = itertools.count(1)
        self.lock = threading.Lock()

    def put(self, kind: str, found: Object, namespace: str = "batch") -> Object:
        """Have an object."""
        head = found.setdefault("metadata", {})
        head.setdefault("uid", f"uid-{next(self._ids)}")
        self.objects[kind, namespace, head["name"]] = found
        return found

    def names(self, kind: str) -> list[str]:
        """Names of the objects of a kind."""
        return sorted(name for known, _, name in self.objects if known == kind)

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        """What the server says to a request."""
        self.asked.append((method, path, query))
        if self.faults:
            self.faults -= 1
            return _status(503, "the server is currently unable to handle the request")
        kind, namespace, name, sub = _read_path(path)
        if (method, kind) in self.refusals:
            return _status(*self.refusals[method, kind])
        if kind not in KNOWN:
            return _status(404, "the server could not find the requested resource")
        if sub == "log":
            return 200, self.logs.get(name, "")
        verb = {
            "GET": self._get,
            "POST": self._create,
            "PATCH": self._patch,
            "DELETE": self._delete,
        }
        return verb[method](kind, namespace, name, query, body)

    def _get(self, kind: str, namespace: str, name: str, query: Any, _: Any) -> tuple[int, Any]:
        if name:
            found = self.objects.get((kind, namespace, name))
            return (200, found) if found else _status(404, f'{kind} "{name}" not found')
        wanted = dict(part.split("=") for part in query.get("labelSelector", "").split(",") if part)
        items = [
            one for (known, where, _), one in sorted(self.objects.items(), key=lambda it: it[0])
            if known == kind and where == namespace
            and wanted.items() <= (one["metadata"].get("labels") or {}).items()
        ]  # fmt: skip
        # Pages of two, so that a client that reads only the first one is found out.
        start = int(query.get("continue") or 0)
        more = str(start + 2) if start + 2 < len(items) else ""
        return 200, {"items": items[start : start + 2], "metadata": {"continue": more}}

    def _create(self, kind: str, namespace: str, _: str, query: Any, body: Any) -> tuple[int, Any]:
        name = body["metadata"]["name"]
        if (kind, namespace, name) in self.objects:
            return _status(409, f'{kind} "{name}" already exists')
        if query.get("dryRun") == "All":
            return 201, body
        return 201, self.put(kind, body, namespace)

    def _patch(self, kind: str, namespace: str, name: str, _: Any, body: Any) -> tuple[int, Any]:
        found = self.objects[kind, namespace, name]
        found["metadata"] |= body["metadata"]
        return 200, found

    def _delete(self, kind: str, namespace: str, name: str, _: Any, __: Any) -> tuple[int, Any]:
        gone = self.objects.pop((kind, namespace, name), None)
        if gone is None:
            return _status(404, f'{kind} "{name}" not found')
        uid = gone["metadata"]["uid"]
        for key, one in list(self.objects.items()):  # the garbage collector
            owners = one["metadata"].get("ownerReferences") or []
            if any(owner["uid"] == uid for owner in owners):
                del self.objects[key]
        return 200, {"kind": "Status", "status": "Success"}


def _status(code: int, message: str) -> tuple[int, Object]:
    return code, {"kind": "Status", "status": "Failure", "message": message, "code": code}


def _read_path(path: str) -> tuple[str, str, str, str]:
    """`/apis/batch/v1/namespaces/n/jobs/j/log` to kind path, namespace, name and subresource."""
    steps = path.strip("/").split("/")
    size = 2 if steps[0] == "api" else 3
    group, rest = steps[:size], steps[size:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    rest += [""] * (3 - len(rest))
    return "/".join([*group, rest[0]]), namespace, rest[1], rest[2]


@contextmanager
def stand_in(folder: Path) -> Iterator[tuple[StandIn, Path]]:
    """A running server, and the kubeconfig that leads to it."""
    held = StandIn()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            address = urlsplit(self.path)
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                status, answer = _status(401, "Unauthorized")
            else:
                with held.lock:
                    status, answer = held.answer(
                        self.command, address.path, dict(parse_qsl(address.query)), body
                    )
            data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = _serve

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    try:
        yield held, path
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
