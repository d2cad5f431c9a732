"""The lines of an OpenAI batch file say which task the job has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batchwright.config.load import make_job
from batchwright.foresight.survey import with_task_of_lines


def write(path: Path, *urls: str, **body: Any) -> Path:
    lines = [{"custom_id": str(i), "method": "POST", "url": url, "body": body}
             for i, url in enumerate(urls)]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def task(path: Path, **sections: Any) -> tuple[str, int | None]:
    job = with_task_of_lines(make_job({"input": {"path": str(path)}, **sections}, {}))
    return job.task, job.embedding.dimensions


@pytest.mark.parametrize(
    ("urls", "expected"),
    [
        (["/v1/embeddings", "/v1/chat/completions"], ("embed", 9)),
        (["/v1/unknown", "/v1/embeddings"], ("embed", 9)),
        (["/v1/responses", "/v1/embeddings"], ("generate", None)),
        (["/v1/unknown"], ("generate", None)),
    ],
)
def test_the_first_served_endpoint_decides(
    urls: list[str], expected: tuple[str, int | None], tmp_path: Path
) -> None:
    assert task(write(tmp_path / "in.jsonl", *urls, dimensions=9)) == expected


def test_what_the_job_says_wins(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", "/v1/embeddings", dimensions=9)
    assert task(path, task="generate") == ("generate", None)
    assert task(path, embedding={"dimensions": 4}) == ("embed", 4)


def test_other_inputs_are_left_alone(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "x", "url": "/v1/embeddings"}\n')
    assert task(rows) == ("generate", None)
    assert task(tmp_path / "none.jsonl") == ("generate", None)
