"""Whole runs against endpoints: what is written, what is not, and how a run goes on."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from batchwright.config.load import make_job, parse_settings
from batchwright.pipeline import validate
from tests.e2e.command import call
from tests.support.fake_endpoint import Answer, Call, chat_answer, error_body, serving
from tests.support.tiny_model import make_tokenizer

ROWS = 300
KEY = "sk-must-never-be-written"


def echo(call: Call) -> Answer:
    return Answer(chat_answer(call.body["messages"][-1]["content"].upper()))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    rows = [{"id": f"r{row}", "word": f"word {row}"} for row in range(ROWS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def options(data: Path, run_dir: Path, url: str, *settings: str) -> list[object]:
    settings = (
        f"engine.options.base_url={url}", "engine.kind=openai", "run.chunk_rows=50", *settings,
    )  # fmt: skip
    return [
        data, "--model", "some/model", "--prompt", "say {{ word }}", "--dir", run_dir,
        *(part for one in settings for part in ("--set", one)),
    ]  # fmt: skip


def results(run_dir: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted((run_dir / "results").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def test_a_run_is_stopped_goes_on_and_answers_each_row_once(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the key is refused, then the endpoint goes away, at last it answers."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    run_dir = tmp_path / "run"
    with serving(lambda call: Answer(error_body("no such key"), 401)) as endpoint:
        ended = call("run", *options(data, run_dir, endpoint.url), exit_code=2)
    assert "no such key" in ended["error"]["message"]
    assert "api_key_env" in ended["error"]["hint"]

    answered: list[str] = []

    def tired(call: Call) -> Answer:
        if len(answered) >= 120:
            return Answer(error_body("closed for today"), 503)
        answered.append(call.body["messages"][-1]["content"])
        return echo(call)

    with serving(tired) as endpoint:
        short = "engine.options.give_up_after_s=1.5"
        ended = call("run", *options(data, run_dir, endpoint.url, short), exit_code=75)
    assert "gave no answer for 1.5 s; last: HTTP 503: closed for today" in ended["error"]["message"]

    with serving(echo) as endpoint:
        summary = call("run", *options(data, run_dir, endpoint.url), "--format", "jsonl")
        calls = list(endpoint.calls)
    assert (summary["ok"], summary["failed"], summary["rejected"]) == (ROWS, 0, 0)
    rows = results(run_dir)
    assert [row["text"] for row in rows] == [f"SAY WORD {row}" for row in range(ROWS)]
    assert {(row["prompt_tokens"], row["completion_tokens"]) for row in rows} == {(7, 3)}
    again = Counter(one.body["messages"][-1]["content"] for one in calls)
    assert set(again.values()) == {1}
    assert ROWS - 120 <= len(again) < ROWS, "what was committed is not asked again"
    assert calls[0].headers["Authorization"] == f"Bearer {KEY}"
    written = [path for path in run_dir.rglob("*") if path.is_file()]
    assert len(written) > 5
    assert not [path for path in written if KEY.encode() in path.read_bytes()]


def test_a_pilot_measures_rows_per_second(data: Path, tmp_path: Path) -> None:
    def slow(call: Call) -> Answer:
        return Answer(echo(call).body, after_s=0.05)

    with serving(slow) as endpoint:
        report = call("pilot", *options(data, tmp_path / "run", endpoint.url), "--rows", "100")
    assert report["rows"] == 100
    assert 5 < report["rows_per_s"] < 2000
    assert report["usd"] is None


def test_rows_that_cannot_be_sent_are_found_beforehand(tmp_path: Path) -> None:
    """A field that OpenAI lacks, and a prompt that is too long where the tokenizer is here."""
    data = tmp_path / "rows.jsonl"
    messages = [{"role": "user", "content": "hi"}]
    long = [{"role": "user", "content": "word " * 500}]
    rows = [{"messages": messages}, {"messages": messages, "top_k": 5}, {"messages": long}]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    settings = [
        "engine.kind=openai", "engine.options.base_url=http://localhost:1/v1", "run.max_failed=1",
        "engine.options.dialect=openai",
    ]  # fmt: skip
    exact = [f"model.tokenizer={tokenizer}", "engine.options.max_model_len=256"]

    def reasons(*chosen: str) -> dict[str, int]:
        job = make_job({"input": {"path": str(data)}}, parse_settings(["model.name=gpt", *chosen]))
        found = validate(job, threading.Event(), lambda _: None).as_json()["rejections"]
        return {code: one["rows"] for code, one in found.items()}

    assert reasons(*settings) == {"unsupported": 1}
    assert reasons(*settings, *exact) == {"unsupported": 1, "prompt_too_long": 1}


def test_vectors_of_an_endpoint(tmp_path: Path) -> None:
    def vectors(call: Call) -> Answer:
        data = [{"index": index, "embedding": [3.0, 4.0, float(len(one))]}
                for index, one in enumerate(call.body["input"])]  # fmt: skip
        return Answer({"data": data})

    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"text": "x" * row}) + "\n" for row in range(1, 50)))
    job = tmp_path / "job.yaml"
    with serving(vectors) as endpoint:
        job.write_text(
            json.dumps({
                "input": {"path": str(data)}, "task": "embed", "model": {"name": "e"},
                "prompt": {"column": "text"}, "embedding": {"dimensions": 2, "prompt": "query: "},
                "engine": {"kind": "openai", "options": {"base_url": endpoint.url}},
                "output": {"format": "jsonl"},
            })
        )  # fmt: skip
        summary = call("run", job, "--dir", tmp_path / "run")
        sent = [one for asked in endpoint.calls for one in asked.body["input"]]
    assert summary["ok"] == 49
    assert sorted(sent) == sorted("query: " + "x" * row for row in range(1, 50))
    assert results(tmp_path / "run")[5]["embedding"] == pytest.approx([0.6, 0.8])
