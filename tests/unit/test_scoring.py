"""Jobs of `task: classify`, `score` and `reward`: what is refused, how rows are prepared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from batchwright.config.job import Job
from batchwright.core.errors import JobError
from batchwright.core.pieces import Pieces
from batchwright.equip.coherence import check_task
from batchwright.equip.equipment import engine_settings, job_tokenizer
from batchwright.rundir import layout
from batchwright.rundir.prepared import open_part
from tests.support.tiny_bert import CLS, CONTEXT, SEP
from tests.support.tiny_heads import make_bert_head
from tests.unit.rundir.small_runs import Row, SmallRun, small_run

PAIR: Row = {"query": "ab", "document": "cde"}


def scoring_run(tmp_path: Path, rows: list[Row], **settings: Any) -> SmallRun:
    run = small_run(tmp_path, rows, **{"task": "score", **settings})
    run.job = Job.model_validate(run.manifest.job)
    if settings.get("model__name"):
        run.tokenizer = job_tokenizer(run.job)
    run.prepare()
    return run


def rows_of(run: SmallRun) -> list[dict[str, Any]]:
    (name,) = [name for name in run.storage.names(layout.PREPARED) if name.endswith(".arrow")]
    return open_part(run.storage, f"{layout.PREPARED}/{name}").read_all().to_pylist()


def pieces(row: dict[str, Any]) -> Pieces:
    read = orjson.loads(row["extras"])
    return Pieces(tuple(read["lengths"]), tuple(read["second_at"]), read["listed"])


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bert_head(tmp_path_factory.mktemp("models") / "rerank", ["relevant"])


def test_a_pair_is_one_input_and_the_model_is_told_where_the_second_text_begins(
    reranker: Path, tmp_path: Path
) -> None:
    (row,) = rows_of(scoring_run(tmp_path, [PAIR], model__name=str(reranker)))
    ids = row["token_ids"]
    assert (ids[0], ids[-1], ids.count(SEP), row["max_tokens"]) == (CLS, SEP, 2, 0)
    assert pieces(row) == Pieces((len(ids),), (ids.index(SEP) + 1,), listed=False)


def test_of_a_list_each_document_is_a_piece_and_bad_ones_are_empty(
    reranker: Path, tmp_path: Path
) -> None:
    row: Row = {"query": "a", "documents": ["b", None, "word " * CONTEXT, "", "c"]}
    (made,) = rows_of(scoring_run(tmp_path, [row], model__name=str(reranker)))
    assert pieces(made).lengths == (5, 0, 0, 0, 5)
    assert pieces(made).listed
    assert made["warnings"] == ["document_skipped"]


def test_vectors_of_both_texts_are_asked_for_apart(tiny_bert: Path, tmp_path: Path) -> None:
    run = scoring_run(tmp_path, [PAIR], model__name=str(tiny_bert))
    (row,) = rows_of(run)
    first, second = pieces(row).lengths
    ids = row["token_ids"]
    assert [ids[0], ids[first - 1], ids[first], ids[-1]] == [CLS, SEP, CLS, SEP]
    assert first + second == len(ids)
    settings = engine_settings(run.manifest, run.job, run.tokenizer)
    assert settings.task.method == "vectors"
    assert settings.embedding is not None
    assert settings.task.vectors is None, "the results hold none"


def test_the_models_own_prompts_go_ahead_of_the_texts(tiny_bert: Path, tmp_path: Path) -> None:
    import shutil

    model = tmp_path / "model"
    shutil.copytree(tiny_bert, model)
    prompts = b'{"prompts": {"query": "q: ", "passage": "p: "}, "default_prompt_name": "query"}'
    (model / "config_sentence_transformers.json").write_bytes(prompts)
    found = scoring_run(tmp_path / "a", [PAIR], model__name=str(model)).job.scoring
    assert (found.query_prompt, found.document_prompt) == ("q: ", "p: ")
    own = scoring_run(
        tmp_path / "b", [PAIR], model__name=str(model), scoring__document_prompt=""
    ).job.scoring
    assert (own.query_prompt, own.document_prompt) == ("q: ", "")


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"query": "a"}, "missing_field"),
        ({"document": "a"}, "missing_field"),
        ({"query": "a", "document": None}, "missing_prompt"),
        ({"query": "a", "documents": None}, "missing_prompt"),
        ({"query": "", "document": "a"}, "empty_prompt"),
        ({"query": "a", "documents": []}, "empty_prompt"),
        ({"query": "a", "documents": [None, ""]}, "empty_prompt"),
        ({"query": "a", "document": 7}, "bad_prompt"),
        ({"query": "a", "documents": "b"}, "bad_prompt"),
        ({"query": "a", "documents": ["b", 7]}, "bad_prompt"),
        ({"query": "a", "document": "b", "documents": ["c"]}, "ambiguous_prompt"),
        ({"query": "a", "document": "b" * 9000}, "prompt_too_long"),
        ({"query": "a" * 9000, "documents": ["b", "c"]}, "prompt_too_long"),
    ],
)
def test_bad_rows_are_rejected_alone(row: Row, code: str, tmp_path: Path) -> None:
    good, bad = rows_of(scoring_run(tmp_path, [PAIR, row]))
    assert (good["error_code"], bad["error_code"]) == (None, code)
    assert bad["token_ids"] == []


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    row: Row = {"q": "ab", "passage": "cde", "score": 1}
    (made,) = rows_of(scoring_run(tmp_path, [row], scoring__query="q", scoring__document="passage"))
    assert bytes(made["token_ids"]) == b"abcde"


@pytest.mark.parametrize("over_length", ["truncate_left", "truncate_right"])
def test_the_query_is_never_cut(over_length: str, reranker: Path, tmp_path: Path) -> None:
    row: Row = {"query": "a b c", "document": "d " * CONTEXT + "e"}
    settings = {"model__name": str(reranker), "plan__over_length": over_length}
    (made,) = rows_of(scoring_run(tmp_path, [row], **settings))
    (whole,) = rows_of(scoring_run(tmp_path / "x", [{**PAIR, "query": "a b c"}], **settings))
    query = whole["token_ids"].index(SEP) + 1
    assert made["token_ids"][:query] == whole["token_ids"][:query]
    assert (len(made["token_ids"]), made["truncated"]) == (CONTEXT, True)
    d, e = made["token_ids"][query], made["token_ids"][-2]
    assert (d == e) == (over_length == "truncate_right")


def test_a_conversation_is_judged_as_a_whole_and_never_cut(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    long = [turns[0], {"role": "assistant", "content": "x" * 9000}]
    settings = {"task": "reward", "plan__over_length": "truncate_right"}
    made, rejected = rows_of(
        scoring_run(tmp_path, [{"messages": turns}, {"messages": long}], **settings)
    )
    assert bytes(made["token_ids"]) == b"user: hi\nassistant: ho\n"
    assert rejected["error_code"] == "prompt_too_long"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"task": "classify", "engine__kind": "torch"}, "makes embeddings only"),
        ({"task": "embed", "scoring__raw": True}, "is for task: classify, score and reward"),
        ({"task": "classify", "embedding__dimensions": 5}, "is for task: embed"),
        ({"prompt__column": "x"}, "columns of the section scoring"),
        ({"embedding__prompt": "x"}, "for task: embed"),
        ({"sampling__max_tokens": 5}, "task: score samples nothing"),
        ({"task": "reward", "prompt__system": "x"}, "reads texts as they are"),
        ({"plan__max_hours": 1}, "need a pilot"),
        ({"task": "embed", "embedding__prompt": "a", "embedding__prompt_name": "b"}, "give one of"),
    ],
)
def test_settings_without_a_use_are_refused(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(JobError, match=said):
        scoring_run(tmp_path, [PAIR], **settings)


def test_rows_without_the_columns_are_the_jobs_fault(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"scoring: the row has no field 'query'.*each of the first"):
        scoring_run(tmp_path, [{"text": "a"}, {"text": "b"}])


def test_a_job_of_text_is_let_through(tmp_path: Path) -> None:
    run = small_run(tmp_path, [{"prompt": "a"}])
    check_task(run.job)
    assert run.manifest.fingerprint["scoring"] is None
