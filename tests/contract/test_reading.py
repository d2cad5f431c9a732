"""Thoughts and tool calls come out of answers by vLLM's own parsers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from batchwright.core.errors import EngineError, JobError
from batchwright.engines.reading import AnswerReader, RawAnswer, ReaderSettings
from tests.e2e import command
from tests.support.tiny_model import make_tokenizer

pytestmark = pytest.mark.vllm

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
        }
    ]
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that knows the marks around thoughts and calls."""
    folder = make_tokenizer(tmp_path_factory.mktemp("thinker"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(list(MARKS))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def settings(folder: Path, reasoning: str | None, tools: str | None) -> ReaderSettings:
    return ReaderSettings(str(folder), str(folder), None, False, reasoning, tools)


@pytest.fixture(scope="module")
def reader(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerReader]:
    log_path = tmp_path_factory.mktemp("log") / "reader.log"
    reader = AnswerReader(settings(folder, "qwen3", "hermes"), log_path)
    reader.start()
    reader.wait()
    yield reader
    reader.stop()
    reader.stop()


def as_ids(folder: Path, text: str) -> list[int]:
    ids: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    return ids


def raw(folder: Path, text: str, tools: str = "", kwargs: str = "{}") -> RawAnswer:
    ids = as_ids(folder, text)
    return RawAnswer([*ids, 2], len(ids), None, tools, kwargs)


def test_thoughts_and_calls_come_apart(reader: AnswerReader, folder: Path) -> None:
    first, second, third = reader.read(
        [
            raw(folder, "<think>\nlet me see\n</think>\n\nThe answer is 3."),
            raw(folder, f"<think>call it</think>{CALL}", TOOLS),
            raw(folder, f"<think>no tools here</think>{CALL}"),
        ]
    )
    assert (first.reasoning or "").strip() == "let me see"
    assert first.text.strip() == "The answer is 3."
    assert first.calls is None
    assert second.reasoning == "call it"
    assert second.text is None
    assert second.calls is not None
    ((_, name, arguments),) = second.calls
    assert (name, json.loads(arguments)) == ("weather", {"city": "Ulm"})
    assert third.calls is None
    assert "weather" in third.text


def test_thoughts_that_are_cut_leave_no_text(reader: AnswerReader, folder: Path) -> None:
    cut, empty = reader.read([raw(folder, "<think>still at"), raw(folder, "<think></think>")])
    assert (cut.reasoning, cut.text) == ("still at", None)
    assert (empty.reasoning, empty.text) in (("", ""), (None, ""))


def test_a_text_of_the_engines_own_is_taken_as_it_is(reader: AnswerReader) -> None:
    (read,) = reader.read([RawAnswer([1, 2], 2, "<think>a</think>b", "", "{}")])
    assert (read.reasoning, read.text) == ("a", "b")


def test_thinking_that_is_switched_off_leaves_plain_text(
    reader: AnswerReader, folder: Path
) -> None:
    (read,) = reader.read([raw(folder, "plain text", kwargs='{"enable_thinking":false}')])
    assert (read.reasoning, read.text) == (None, "plain text")


def test_parsers_that_do_not_exist_or_do_not_suit(folder: Path, tmp_path: Path) -> None:
    unknown = AnswerReader(settings(folder, "qwen33", None), tmp_path / "a.log")
    unknown.start()
    with pytest.raises(JobError, match="no parser 'qwen33'"):
        unknown.wait()
    unknown.stop()


def test_a_reader_that_died_says_so(folder: Path, tmp_path: Path) -> None:
    reader = AnswerReader(settings(folder, "qwen3", None), tmp_path / "a.log")
    reader.start()
    assert reader._process is not None
    reader._process.kill()
    with pytest.raises(EngineError, match="ended"):
        reader.wait()
    reader.stop()


def test_a_run_has_columns_for_both(folder: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    ask = {"messages": [{"role": "user", "content": "the weather?"}]}
    tools = json.loads(TOOLS)
    given = [ask, {**ask, "tools": tools}, {**ask, "n": 2, "temperature": 1.0, "tools": tools}]
    rows.write_text("".join(json.dumps(row) + "\n" for row in given))
    command.call(
        "run", rows, "--dir", tmp_path / "run",
        "--set", f"model.name={folder}", "--set", "model.reasoning_parser=qwen3",
        "--set", "model.tool_call_parser=hermes", "--set", "engine.kind=fake",
        "--set", f"engine.options.text={json.dumps(f'<think>hm</think>{CALL}')}",
        "--set", "output.format=jsonl",
    )  # fmt: skip
    (results,) = (tmp_path / "run" / "results").glob("*.jsonl")
    plain, called, twice = map(json.loads, results.read_text().splitlines())
    assert {row["reasoning"] for row in (plain, called, twice)} == {"hm"}
    assert plain["tool_calls"] is None
    assert "weather" in plain["text"]
    assert called["text"] is None
    assert called["tool_calls"] == [
        {
            "id": "call_1_0_0",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Ulm"}'},
        }
    ]
    assert [one["tool_calls"][0]["id"] for one in twice["choices"]] == ["call_2_0_0", "call_2_1_0"]
    assert called["warnings"] is None
