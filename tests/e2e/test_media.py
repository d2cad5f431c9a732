"""Images from all sides on a real vision model: each answer its own, each bad image its own fault."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import call
from tests.support.media_server import MediaServer
from tests.support.patched_torchvision import install
from tests.support.pictures import bomb, png
from tests.support.tiny_llava import IMAGE_TOKENS, make_tiny_llava

OPTIONS: list[object] = [
    "--max-tokens", "6", "--format", "jsonl", "--set", "run.max_failed=1",
    "--set", "run.stop_at_failed=1", "--set", "run.pilot_rows=0",
    "--set", "media.retries=0", "--set", "media.timeout_s=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def vision_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny LLaVA, and a torchvision for the processes that run it."""
    folder = tmp_path_factory.mktemp("vision")
    problem = install(folder / "packages")
    if problem is not None:
        pytest.skip(f"vision models need torchvision: {problem}")
    before = os.environ.get("PYTHONPATH")
    paths = [str(folder / "packages"), *([before] if before else [])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        yield make_tiny_llava(folder / "llava")


@pytest.fixture
def server() -> Iterator[MediaServer]:
    server = MediaServer()
    yield server
    server.close()


def ask(url: str, text: str = "what is this?") -> dict[str, Any]:
    parts = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": text},
    ]
    return {"messages": [{"role": "user", "content": parts}]}


def results(run_dir: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted((run_dir / "results").glob("*.jsonl")):
        found += map(json.loads, path.read_text().splitlines())
    return found


def write_pictures(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.png").write_bytes(png(1))
    (folder / "b.jpg").write_bytes(png(2, image_format="JPEG"))
    (folder / "broken.jpg").write_bytes(png(2, image_format="JPEG")[:200])
    cut = png(3, size=(200, 200), image_format="JPEG")
    (folder / "cut.jpg").write_bytes(cut[: len(cut) // 2])
    (folder / "huge.png").write_bytes(bomb())
    (folder / "text.png").write_bytes(b"no picture at all")
    (folder.parent / "secret.png").write_bytes(png(5))
    (folder / "link.png").symlink_to(folder.parent / "secret.png")


def many_rows(server: MediaServer) -> list[tuple[dict[str, Any], str | None]]:
    """Rows and the code that each must get."""
    data = "data:image/png;base64," + base64.b64encode(png(1)).decode()
    two = ask("a.png")
    two["messages"][0]["content"].append({"type": "image", "image": "b.jpg"})
    return [
        (ask("a.png"), None),
        (ask("b.jpg"), None),
        (ask(data), None),
        (ask(f"{server.url}/a.png"), "media_forbidden"),
        (two, None),
        ({"messages": [{"role": "user", "content": "no picture"}]}, None),
        (ask("missing.png"), "media_not_found"),
        (ask("broken.jpg"), "bad_media"),
        (ask("cut.jpg"), "bad_media"),
        (ask("huge.png"), "media_too_large"),
        (ask("text.png"), "bad_media"),
        (ask("link.png"), "media_forbidden"),
        (ask("../secret.png"), "media_forbidden"),
        (ask("http://169.254.169.254/latest/meta-data/"), "media_forbidden"),
        (ask("gopher://example.org/x"), "media_forbidden"),
        (ask("a.png", "word " * 600), "prompt_too_long"),
    ]


@pytest.mark.vllm
def test_each_picture_has_its_own_answer_and_each_fault_its_row(
    vision_model: Path, server: MediaServer, tmp_path: Path
) -> None:
    data, run_dir = tmp_path / "data", tmp_path / "run"
    write_pictures(data)
    rows = many_rows(server)
    (data / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row, _ in rows))
    summary = call(
        "run", data / "rows.jsonl", "--model", vision_model, "--dir", run_dir, *OPTIONS,
        "--set", "engine.options.max_model_len=512", "--set", "engine.options.max_num_seqs=8",
        "--set", "engine.options.kv_cache_memory_bytes=67108864", "--set", "model.dtype=float32",
    )  # fmt: skip
    assert (summary["ok"], summary["failed"] + summary["rejected"]) == (5, 11)
    found = results(run_dir)
    assert [row["error_code"] for row in found] == [code for _, code in rows]
    a, b, inline, _, two, none, *_ = found
    assert a["text"] != b["text"], "another picture, another answer"
    assert a["text"] == inline["text"], "the same picture, the same answer"
    assert two["text"] not in (a["text"], b["text"])
    assert two["prompt_tokens"] - none["prompt_tokens"] >= 2 * IMAGE_TOKENS
    prepared = [row["prompt_tokens"] for row in (a, b, inline)]
    assert prepared == [a["prompt_tokens"]] * 3
    assert call("verify", run_dir)["passed"]
