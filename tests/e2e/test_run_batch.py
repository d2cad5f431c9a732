"""`run-batch` without a model: files of vLLM's users go in and come out, whatever happens between."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from batchwright.cli.app import app
from tests.e2e.command import kill_all, start

FAKE = ["--set", "engine.kind=fake"]


def chat(custom_id: str, text: str, **body: Any) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 6} | body
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    )


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def command(*arguments: object, exit_code: int = 0) -> dict[str, Any]:
    """A command in this process, where importing is paid for once."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == exit_code, result.output
    return dict(json.loads(result.stdout))


def run_batch(
    source: object, output: object, *options: object, exit_code: int = 0
) -> dict[str, Any]:
    words = ["-i", source, "-o", output, *FAKE, *options]
    return command("run-batch", *words, exit_code=exit_code)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Lines good and bad, one of another task, one id twice."""
    path = tmp_path / "in.jsonl"
    embedding = {"model": "m", "input": "x"}
    lines = [
        chat("a", "one"),
        '{"custom_id": "b", "method": "POST", "url"',
        chat("c", "three", temperature=9000),
        json.dumps({"custom_id": "d", "method": "POST", "url": "/v1/embeddings",
                    "body": embedding}),
        "",
        chat("a", "the same id again"),
        json.dumps({"custom_id": "e", "method": "POST", "url": "/v1/completions",
                    "body": {"prompt": [5, 6, 7], "max_tokens": 4}}),
        json.dumps({"custom_id": "f", "method": "POST", "url": "/v1/responses",
                    "body": {"input": "hello", "max_output_tokens": 4}}),
    ]  # fmt: skip
    path.write_text("\n".join(lines) + "\n")
    return path


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    handler = partial(_Quiet, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{served.server_address[1]}"
        served.shutdown()
        thread.join()


def test_each_line_has_one_line_in_order(server: str, source: Path, tmp_path: Path) -> None:
    output = tmp_path / "there" / "out.jsonl"
    words = ["--max-model-len", "512", "--enable-metrics", "--port=8001"]
    said = run_batch(f"{server}/{source.name}", output, *words)
    assert (said["ok"], said["rejected"], said["output"]) == (4, 3, str(output))
    lines = read(output)
    assert [line["custom_id"] for line in lines] == ["a", None, "c", "d", "a", "e", "f"]
    codes = [line["response"]["status_code"] for line in lines]
    assert codes == [200, 400, 400, 400, 200, 200, 200]
    assert lines[2]["error"]["error"]["param"] == "temperature"
    assert "task: embed" in lines[3]["error"]["error"]["message"]
    objects = [line["response"]["body"]["object"] for line in lines if line["error"] is None]
    assert objects == ["chat.completion", "chat.completion", "text_completion", "response"]
    assert lines[5]["response"]["body"]["usage"]["prompt_tokens"] == 3


def test_a_finished_run_makes_room_and_one_in_the_middle_does_not(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(chat("a", "one") + "\n")
    run_batch(source, output)
    first = output.read_bytes()
    output.unlink()
    run_batch(source, output)
    assert output.read_bytes() == first, "a finished run writes the same file again"
    source.write_text(chat("b", "two") + "\n" + chat("c", "three") + "\n")
    run_batch(source, output)
    assert [line["custom_id"] for line in read(output)] == ["b", "c"]
    (tmp_path / "out.jsonl.run" / "_SUCCESS").unlink()
    source.write_text(chat("d", "four") + "\n")
    refused = run_batch(source, output, exit_code=2)
    assert "out.jsonl.run" in json.dumps(refused)


def test_a_file_of_embeddings_is_a_job_of_embeddings(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    line = {"custom_id": "e", "method": "POST", "url": "/v1/embeddings"}
    bodies = [{"input": "x", "dimensions": 8}, {"input": ["y"]}, {"input": "z", "dimensions": 9}]
    source.write_text("".join(json.dumps({**line, "body": body}) + "\n" for body in bodies))
    run_batch(source, output)
    first, second, third = read(output)
    for found in (first, second):
        assert found["response"]["body"]["object"] == "list"
        assert len(found["response"]["body"]["data"][0]["embedding"]) == 8
    assert third["response"]["status_code"] == 400


def test_killed_and_started_again_the_file_is_whole(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(chat(f"r{row}", f"row {row}") + "\n" for row in range(1500)))
    options = [
        "run-batch", "-i", source, "-o", output, *FAKE, "--output-tmp-dir", tmp_path / "tmp",
        "--set", "engine.options.seconds_per_step=0.05", "--set", "run.chunk_rows=200",
        "--set", "run.lease_s=5", "--set", "run.pilot_rows=0",
    ]  # fmt: skip
    process = start(*options)
    run_dir = tmp_path / "tmp" / "out.jsonl.run"
    deadline = time.monotonic() + 120
    while len(list((run_dir / "receipts").glob("chunk-*"))) < 2:
        assert time.monotonic() < deadline, "nothing was committed"
        time.sleep(0.02)
    kill_all(process)
    assert not output.exists()
    said = command(*options)
    assert said["rows_before"] > 0
    lines = read(output)
    assert [line["custom_id"] for line in lines] == [f"r{row}" for row in range(1500)]
    assert all(line["response"]["status_code"] == 200 for line in lines)


def test_what_cannot_be_is_said_before_anything_starts(
    server: str, source: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    assert "404" in json.dumps(run_batch(f"{server}/none.jsonl", output, exit_code=3))
    assert "curl -T" in json.dumps(run_batch(source, f"{server}/up", exit_code=2))
    assert "folder" in json.dumps(run_batch(source, tmp_path, exit_code=2))
    assert "-z" in json.dumps(run_batch(source, output, "-z", "1", exit_code=2))
    assert not list(tmp_path.glob("*.run"))


def test_export_of_a_run_in_the_two_files_of_openai(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": "x", "prompt": "one"}\n{"id": "y"}\n{"id": "z", "prompt": "two"}\n')
    run_dir, out = tmp_path / "run", tmp_path / "out"
    command("run", rows, "--engine", "fake", "--dir", run_dir, "--set", "run.max_failed=1")
    said = command("export", run_dir, "--format", "openai-batch", "-o", out)
    assert sorted(path.name for path in out.glob("results-*")) == [
        "results-errors.jsonl", "results-output.jsonl",
    ]  # fmt: skip
    assert len(said["results"]) == 2
    answers, errors = read(out / "results-output.jsonl"), read(out / "results-errors.jsonl")
    assert [line["custom_id"] for line in answers] == ["x", "z"]
    assert [(line["custom_id"], line["error"]["line"]) for line in errors] == [("y", 2)]


@pytest.mark.vllm
def test_an_option_that_vllm_does_not_have_is_named(
    tiny_model: Path, source: Path, tmp_path: Path
) -> None:
    words = ["-i", source, "-o", tmp_path / "out.jsonl", "--model", tiny_model]
    refused = command("run-batch", *words, "--max-modle-len", "512", exit_code=2)
    assert "max_model_len" in json.dumps(refused)
    assert not list(tmp_path.glob("*.run"))
