"""A real vLLM server behind a proxy that makes trouble, killed once: nothing lost, nothing twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import call, start
from tests.support.chaos_proxy import ChaosProxy, chaos

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
ROWS = 1000
PLACES = 24  # requests that the proxy lets through at the same time
NAME = "tiny"


class Server:
    """vLLM's API server on a port that stays the same."""

    def __init__(self, model: Path, log: Path) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self._model = model
        self._log = log
        self._pid = 0
        env = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "WARNING",
               "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "PYTHONWARNINGS": "ignore"}  # fmt: skip
        with log.open("ab") as out:
            self.launcher = subprocess.Popen(
                [sys.executable, "-m", "tests.support.vllm_server"], env=env, cwd=ROOT, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out,
            )  # fmt: skip

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def begin(self) -> None:
        arguments = [
            "--model", self._model, "--served-model-name", NAME, "--host", "127.0.0.1",
            "--port", self.port, "--max-model-len", 512, "--max-num-seqs", 64,
            "--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", 64 << 20,
            "--generation-config", "vllm", "--disable-uvicorn-access-log",
        ]  # fmt: skip
        assert self.launcher.stdin is not None
        assert self.launcher.stdout is not None
        self.launcher.stdin.write(json.dumps([str(one) for one in arguments]) + "\n")
        self.launcher.stdin.flush()
        self._pid = int(self.launcher.stdout.readline())

    def wait(self) -> None:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=2).close()
            except OSError:
                time.sleep(0.2)
            else:
                return
        raise AssertionError(f"the server never came up: {self._log.read_text()[-3000:]}")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)

    def end(self) -> None:
        assert self.launcher.stdin is not None
        assert self.launcher.stdout is not None
        self.kill()
        self.launcher.stdin.close()
        self.launcher.kill()
        self.launcher.wait(30)
        self.launcher.stdout.close()


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tiny_model, tmp_path_factory.mktemp("server") / "server.log")
    try:
        server.begin()
        server.wait()
        yield server
    finally:
        server.end()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    rows = [
        {"id": f"r{row}", "messages": [{"role": "user", "content": f"row {row} says the number"}]}
        for row in range(ROWS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def options(data: Path, run_dir: Path, url: str) -> list[object]:
    settings = [f"engine.options.base_url={url}", "run.chunk_rows=100", "run.pilot_rows=0"]
    return [
        "run", data, "--engine", "openai", "--model", NAME, "--max-tokens", "12", "--dir", run_dir,
        "--format", "jsonl", *(part for one in settings for part in ("--set", one)),
    ]  # fmt: skip


def read_results(run_dir: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted((run_dir / "results").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def wait_for_answers(proxy: ChaosProxy, count: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 150
    while proxy.did["none"] < count:
        assert process.poll() is None, f"ended by itself: {proxy.did}"
        assert time.monotonic() < deadline, f"no answers came: {proxy.did}"
        time.sleep(0.02)


@pytest.mark.slow
def test_nothing_is_lost_or_twice_and_answers_are_those_of_a_quiet_run(
    server: Server, data: Path, tmp_path: Path
) -> None:
    quiet, rough = tmp_path / "quiet", tmp_path / "rough"
    call(*options(data, quiet, f"{server.url}/v1"))
    wanted = read_results(quiet)
    assert [row["row"] for row in wanted] == list(range(ROWS))
    assert all(row["status"] == "ok" for row in wanted)
    assert all(row["prompt_tokens"] > 5 and row["completion_tokens"] == 12 for row in wanted)

    with chaos(server.url, places=PLACES) as proxy:
        process = start(*options(data, rough, proxy.url))
        wait_for_answers(proxy, 300, process)
        server.kill()
        server.begin()
        assert process.wait(timeout=200) == 0
        troubles, at_once = proxy.did, proxy.at_once

    found = read_results(rough)
    assert [row["id"] for row in found] == [f"r{row}" for row in range(ROWS)]
    assert {row["status"] for row in found} == {"ok"}
    assert [row["text"] for row in found] == [row["text"] for row in wanted]
    assert call("verify", rough)["passed"]
    assert max(row["attempts"] for row in found) > 1
    for trouble in ("busy", "fault", "drop before", "drop after", "server away"):
        assert troubles[trouble] > 0, troubles
    assert max(at_once) <= PLACES
    late = at_once[len(at_once) // 2 :]
    assert max(late) >= PLACES / 3, f"the window recovers: {late}"
    assert troubles["busy"] < 0.2 * len(at_once), f"the window settles: {troubles}"
