"""Jobs of `task: embed`: what the survey makes of them, and how their rows are prepared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchwright.config.job import Job
from batchwright.core.errors import JobError
from batchwright.equip.equipment import engine_settings, job_tokenizer
from batchwright.rundir import layout
from batchwright.rundir.prepared import open_part
from batchwright.working.committer import is_greedy
from tests.support.tiny_bert import CLS, CONTEXT, HIDDEN, SEP
from tests.unit.rundir.small_runs import Row, SmallRun, small_run

TEXTS: list[Row] = [{"id": f"r{row}", "text": "one two " * (row + 1)} for row in range(3)]


def embedding_run(tmp_path: Path, rows: list[Row], **settings: Any) -> SmallRun:
    run = small_run(tmp_path, rows, **{"task": "embed", "prompt__column": "text", **settings})
    if settings.get("model__name"):
        run.tokenizer = job_tokenizer(run.job)
    run.prepare()
    return run


def rows_of(run: SmallRun) -> list[dict[str, Any]]:
    (name,) = [name for name in run.storage.names(layout.PREPARED) if name.endswith(".arrow")]
    return open_part(run.storage, f"{layout.PREPARED}/{name}").read_all().to_pylist()


def test_the_manifest_holds_what_the_model_decides(tiny_bert: Path, tmp_path: Path) -> None:
    run = embedding_run(tmp_path, TEXTS, model__name=str(tiny_bert))
    resolved = Job.model_validate(run.manifest.job)
    assert (resolved.embedding.pooling, resolved.embedding.dimensions) == ("mean", HIDDEN)
    assert (run.manifest.max_model_len, run.manifest.chat) == (CONTEXT, False)
    assert run.manifest.fingerprint["embedding"]["dimensions"] == HIDDEN
    settings = engine_settings(run.manifest, resolved, run.tokenizer)
    assert settings.task == resolved.task_settings()
    assert settings.embedding is not None
    assert settings.embedding.width_bytes == HIDDEN * 4


def test_texts_have_special_tokens_and_no_answer(tiny_bert: Path, tmp_path: Path) -> None:
    rows = rows_of(embedding_run(tmp_path, TEXTS, model__name=str(tiny_bert)))
    assert [(row["token_ids"][0], row["token_ids"][-1]) for row in rows] == [(CLS, SEP)] * 3
    assert [row["max_tokens"] for row in rows] == [0] * 3


def test_the_jobs_text_is_put_ahead_of_the_rows(tmp_path: Path) -> None:
    rows = rows_of(embedding_run(tmp_path, TEXTS[:1], embedding__prompt="query: "))
    assert bytes(rows[0]["token_ids"]) == b"query: one two "


def test_a_column_named_like_a_sampling_field_is_data(tmp_path: Path) -> None:
    rows = rows_of(embedding_run(tmp_path, [{"text": "a", "temperature": "hot"}]))
    assert rows[0]["error_code"] is None


def test_equal_inputs_may_be_computed_once(tmp_path: Path) -> None:
    rows = rows_of(embedding_run(tmp_path, TEXTS))
    assert {is_greedy(row["sampling"]) for row in rows} == {True}


@pytest.mark.parametrize(
    ("row", "settings", "code"),
    [
        ({"messages": [{"role": "user", "content": "hi"}]}, {}, "unsupported"),
        ({"prompt": [1, 2]}, {"embedding__prompt": "query: "}, "bad_prompt"),
        ({"prompt": "x" * 9000}, {}, "prompt_too_long"),
    ],
)
def test_what_cannot_be_embedded_is_rejected(
    row: Row, settings: dict[str, Any], code: str, tmp_path: Path
) -> None:
    rows = rows_of(embedding_run(tmp_path, [row], prompt__column=None, **settings))
    assert rows[0]["error_code"] == code
    assert rows[0]["token_ids"] == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sampling__max_tokens": 5}, "samples nothing"),
        ({"prompt__system": "Be brief."}, "reads plain text"),
        ({"prompt__chat": True}, "reads plain text"),
        ({"plan__max_usd": 1, "plan__usd_per_gpu_hour": 2.0}, "need a pilot"),
        ({"task": "generate", "embedding__dimensions": 5}, "is for task: embed"),
        ({"task": "generate", "engine__kind": "torch"}, "makes embeddings only"),
    ],
)
def test_settings_of_the_other_task_are_refused(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(JobError, match=said):
        embedding_run(tmp_path, TEXTS, **settings)
