"""Response objects and error lines: OpenAI's shapes, one line per row, the same bytes each time."""

from __future__ import annotations

import base64
import dataclasses
import json
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from batchwright.core.outcomes import Logprob, More, Outcome, Sample, TokenLogprobs
from batchwright.core.records import Receipt
from batchwright.core.schemas import JSON_INPUT
from batchwright.core.tasks import TaskSettings
from batchwright.core.vectors import EmbeddingSettings
from batchwright.write.parts import build_part, encode_part, summarise
from batchwright.write.response_bodies import Responses
from tests.unit.write.stored import Folder, export, failure, prepared, rejections

COMMON = Responses(model="m", run_id="abc", created=99, end_token_id=2)
AS_VLLM = Responses(model="m", run_id="abc", created=99, end_token_id=2, as_vllm=True)
SPELLED = {4: "Hi", 5: " you", 6: "é"}


def line(custom_id: str, url: str = "/v1/chat/completions", **body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def keep(
    folder: Folder, inputs: list[str], outcomes: list[Outcome], **settings: Any
) -> Receipt:  # fmt: skip
    rows = [one.row for one in outcomes]
    table = build_part(
        prepared(inputs).take(rows), np.array(rows, np.int64), outcomes, SPELLED, **settings
    )
    data = encode_part(table)
    (folder.root / "part.parquet").write_bytes(data)
    counts = summarise(table)
    return Receipt(0, 0, "part.parquet", "", worker="w", seconds=1.0, **counts)


def rejected_line(row: int, line_number: int, text: str | None) -> pa.Table:
    table = rejections([row], pa.array([text], JSON_INPUT))
    return table.append_column("line", pa.array([line_number], pa.int64()))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "output")


def write(
    folder: Folder, out: Path, receipt: Receipt, total: int, common: Responses = COMMON, **more: Any
) -> dict[str, list[dict[str, Any]]]:
    name = "vllm-batch" if common.as_vllm else "openai-batch"
    files = export(folder, out, [receipt], format=name, responses=common, total_rows=total, **more)
    return {path.stem: read(path) for path in files}


def one(folder: Folder, tmp_path: Path, text: str, outcome: Outcome) -> dict[str, Any]:
    lines = write(folder, tmp_path / "out", keep(folder, [text], [outcome]), 1)
    (found,) = lines["results-output"]
    assert found["error"] is None
    assert found["response"]["status_code"] == 200
    return dict(found["response"]["body"])


def test_chat(folder: Folder, tmp_path: Path) -> None:
    outcome = Outcome(0, [4, 2], text="Hi", finish_reason="stop", stop_reason="2", cached_tokens=1)
    body = one(folder, tmp_path, line("a"), outcome)
    assert body == {
        "id": "chatcmpl-abc-0",
        "object": "chat.completion",
        "created": 99,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "total_tokens": 5,
            "completion_tokens": 2,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }


def test_samples_logprobs_and_other_stop_reasons(folder: Folder, tmp_path: Path) -> None:
    likely = (Logprob(4, -0.5, 1), Logprob(5, None, 2))
    logprobs = (TokenLogprobs(likely[0], likely),)
    other = Sample([5, 7], text=" you", finish_reason="stop", stop_reason="7")
    outcome = Outcome(
        0, [4], text="Hi", finish_reason="stop", stop_reason="5",
        more=More(samples=(other,), logprobs=logprobs),
    )  # fmt: skip
    body = one(folder, tmp_path, line("a", stop=["5"], n=2), outcome)
    first, second = body["choices"]
    assert (first["stop_reason"], second["stop_reason"]) == ("5", 7)
    assert (second["index"], second["message"]["content"]) == (1, " you")
    assert first["logprobs"]["content"] == [
        {
            "token": "Hi",
            "logprob": -0.5,
            "bytes": [72, 105],
            "top_logprobs": [
                {"token": "Hi", "logprob": -0.5, "bytes": [72, 105]},
                {"token": " you", "logprob": -9999.0, "bytes": [32, 121, 111, 117]},
            ],
        }
    ]
    assert second["logprobs"] is None
    assert body["usage"]["completion_tokens"] == 3


def test_calls_and_thoughts_leave_the_content_null(folder: Folder, tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    outcome = Outcome(
        0, [4], text="", finish_reason="tool_calls",
        more=More(tool_calls=(call,), reasoning="think"),
    )  # fmt: skip
    message = one(folder, tmp_path, line("a"), outcome)["choices"][0]["message"]
    assert message == {
        "role": "assistant", "content": None, "refusal": None, "tool_calls": [call],
        "reasoning": "think", "reasoning_content": "think",
    }  # fmt: skip


def test_completion(folder: Folder, tmp_path: Path) -> None:
    places = tuple(TokenLogprobs(Logprob(token, -1.0, 1)) for token in (4, 5))
    outcome = Outcome(0, [4, 5], text="Hi you", finish_reason="length", more=More(logprobs=places))
    body = one(folder, tmp_path, line("a", "/v1/completions", prompt="x"), outcome)
    assert (body["id"], body["object"]) == ("cmpl-abc-0", "text_completion")
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Hi you", "length")
    assert choice["logprobs"] == {
        "tokens": ["Hi", " you"],
        "token_logprobs": [-1.0, -1.0],
        "top_logprobs": [{"Hi": -1.0}, {" you": -1.0}],
        "text_offset": [0, 2],
    }


def test_response(folder: Folder, tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    more = More(tool_calls=(call,), reasoning="think")
    outcome = Outcome(0, [4], text="Hi", finish_reason="length", more=more)
    text = line("a", "/v1/responses", input="x", metadata={"k": "v"})
    body = one(folder, tmp_path, text, outcome)
    assert (body["object"], body["status"]) == ("response", "incomplete")
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["type"] for item in body["output"]] == ["reasoning", "message", "function_call"]
    assert body["output"][1]["content"][0]["text"] == "Hi"
    assert body["output"][2]["call_id"] == "c"
    assert body["usage"]["input_tokens"] == 3
    assert body["metadata"] == {"k": "v"}


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("/v1/chat/completions", "chat.ChatCompletion"),
        ("/v1/completions", "Completion"),
        ("/v1/responses", "responses.Response"),
    ],
)
def test_the_client_of_openai_reads_the_objects(
    folder: Folder, tmp_path: Path, url: str, kind: str
) -> None:
    types = pytest.importorskip("openai.types")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    likely = (TokenLogprobs(Logprob(4, -0.5, 1), (Logprob(4, -0.5, 1),)),)
    more = More(tool_calls=(call,), reasoning="think", logprobs=likely)
    outcome = Outcome(0, [4], text="Hi", finish_reason="stop", more=more)
    body = one(folder, tmp_path, line("a", url, input="x"), outcome)
    attrgetter(kind)(types).model_validate(body)


def test_embeddings(folder: Folder, tmp_path: Path) -> None:
    task = TaskSettings("embed", EmbeddingSettings("mean", 2, True, "float32"))
    vector = np.array([0.5, 0.25], "<f4").tobytes()
    texts = [
        line("a", "/v1/embeddings", input="x"),
        line("b", "/v1/embeddings", input="x", encoding_format="base64"),
    ]
    outcomes = [Outcome(0, [], embedding=vector), Outcome(1, [], embedding=vector)]
    rows = np.array([0, 1], np.int64)
    table = build_part(prepared(texts), rows, outcomes, task=task)
    (folder.root / "part.parquet").write_bytes(encode_part(table))
    receipt = Receipt(
        0, 0, "part.parquet", "", worker="w", seconds=1.0, **summarise(table)
    )  # fmt: skip
    lines = write(folder, tmp_path / "out", receipt, 2, task=task)["results-output"]
    first, second = (found["response"]["body"] for found in lines)
    assert first["data"] == [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
    assert base64.b64decode(second["data"][0]["embedding"]) == vector
    assert first["usage"] == {"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0}


def three_fates(folder: Folder) -> tuple[Receipt, list[pa.Table]]:
    answers = [Outcome(0, [4], text="Hi", finish_reason="stop"), failure(2)]
    receipt = keep(folder, [line("a"), "", line("c")], answers)
    return receipt, [rejected_line(1, 2, None)]


def test_errors_have_a_file_of_their_own(folder: Folder, tmp_path: Path) -> None:
    receipt, rejected = three_fates(folder)
    lines = write(folder, tmp_path / "out", receipt, 3, rejected=rejected)
    assert [found["custom_id"] for found in lines["results-output"]] == ["id-0"]
    refused, failed = lines["results-errors"]
    assert refused["response"]["status_code"] == 400
    assert refused["response"]["body"]["error"]["type"] == "invalid_request_error"
    assert refused["error"] == {
        "code": "bad_json", "message": "broken", "param": None, "line": 2,
    }  # fmt: skip
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("id-2", 408)
    assert failed["error"]["code"] == "timeout"


def test_as_vllm_writes_it_all_lines_are_in_one_file(folder: Folder, tmp_path: Path) -> None:
    receipt, rejected = three_fates(folder)
    lines = write(folder, tmp_path / "out", receipt, 3, AS_VLLM, rejected=rejected)
    assert list(lines) == ["results-output"]
    found = lines["results-output"]
    assert [one["custom_id"] for one in found] == ["id-0", "id-1", "id-2"]
    assert [one["id"] for one in found] == ["vllm-abc-0", "vllm-abc-1", "vllm-abc-2"]
    assert found[1]["response"] == {
        "status_code": 400, "request_id": "vllm-batch-abc-1", "body": None,
    }  # fmt: skip
    assert found[1]["error"]["error"] == {
        "message": "broken", "type": "BadRequestError", "param": None, "code": 400,
        "reason": "bad_json", "line": 2,
    }  # fmt: skip


def test_the_same_run_gives_the_same_bytes_and_leaves_nothing_else(
    folder: Folder, tmp_path: Path
) -> None:
    receipt, rejected = three_fates(folder)
    out = tmp_path / "out"
    others = {"format": "jsonl", "columns": "none", "rejected": rejected}
    export(folder, out, [receipt], total_rows=3, **others)
    write(folder, out, receipt, 3, rejected=rejected)
    names = {".manifest.json", "_SUCCESS", "results-output.jsonl", "results-errors.jsonl"}
    assert {path.name for path in out.iterdir()} == names
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    write(folder, out, receipt, 3, rejected=rejected)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_rows_of_any_other_format_are_chat_completions(folder: Folder, tmp_path: Path) -> None:
    text = '{"q": "x", "url": "/v1/completions", "body": {"stop": "7"}}'
    receipt = keep(folder, [text], [Outcome(0, [4], text="Hi", stop_reason="7")])
    common = dataclasses.replace(COMMON, envelopes=False)
    (found,) = write(folder, tmp_path / "out", receipt, 1, common)["results-output"]
    assert found["response"]["body"]["object"] == "chat.completion"
    assert found["response"]["body"]["choices"][0]["stop_reason"] == 7
