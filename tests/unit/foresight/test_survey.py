from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchwright.core.errors import InputError, JobError
from batchwright.equip.coherence import check_engine
from batchwright.foresight.survey import choose_id_column, choose_max_model_len, survey, wants_chat
from batchwright.rundir.manifest import Manifest
from batchwright.tokens.byte_level import ByteTokenizer
from tests.unit.rundir.small_runs import Row, prompts, small_job, small_run, write_rows

CHAT: Row = {"messages": [{"role": "user", "content": "hi"}]}


def look(tmp_path: Path, rows: Sequence[Row], **settings: Any) -> Manifest:
    return survey(small_job(write_rows(tmp_path / "rows.jsonl", rows), **settings))


@pytest.fixture
def no_template(tiny_model: Path, tmp_path: Path) -> Path:
    """The tiny model without its chat template."""
    folder = tmp_path / "plain"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_a_manifest_says_what_the_run_will_be(tmp_path: Path) -> None:
    manifest = look(tmp_path, prompts(3))
    assert manifest.format == "jsonl"
    assert manifest.id_column == "id"
    assert manifest.arrow_input_type() == pa.large_string()
    assert [split.ordinal for split in manifest.splits] == [0]
    assert manifest.files[0].size == (tmp_path / "rows.jsonl").stat().st_size
    assert {"batchwright", "python", "pyarrow"} <= manifest.tools.keys()
    assert manifest.job["input"]["path"] == str(tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"prompt__column": "promt"}, "did you mean 'prompt'"),
        ({"prompt__template": "Say {{ prmpt }}"}, "did you mean 'prompt'"),
        ({"prompt__messages": "chat"}, "no field 'chat'"),
    ],
)
def test_a_column_that_no_row_has_is_one_error(
    tmp_path: Path, settings: dict[str, Any], wanted: str
) -> None:
    with pytest.raises(JobError) as caught:
        look(tmp_path, prompts(30), **settings)
    assert wanted in caught.value.message
    assert "each of the first 20 rows" in caught.value.message
    assert caught.value.hint.startswith("The rows have: id, prompt.")


def test_rows_that_say_nothing_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="neither prompt nor messages"):
        look(tmp_path, [{"text": "a"}, {"text": "b"}])


def test_one_good_row_of_the_first_is_enough(tmp_path: Path) -> None:
    look(tmp_path, [{"id": "0"}, *prompts(1, 1)])


def test_a_prompt_that_is_wrong_in_another_way_is_left_to_the_rows(tmp_path: Path) -> None:
    look(tmp_path, [{"prompt": ""}, {"prompt": 7}])


def test_a_template_with_a_syntax_error_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="line 2"):
        look(tmp_path, prompts(1), prompt__template="fine\n{{ prompt")


def test_two_sources_of_prompts_are_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="one of column, messages and template"):
        look(tmp_path, prompts(1), prompt__template="{{ prompt }}", prompt__column="prompt")


def test_a_wrong_default_of_sampling_is_found(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="min_tokens 9"):
        look(tmp_path, prompts(1), sampling__min_tokens=9, sampling__max_tokens=8)


def test_messages_without_a_chat_template(tmp_path: Path, no_template: Path) -> None:
    with pytest.raises(JobError, match="no chat template"):
        look(tmp_path, [CHAT, CHAT], model__name=str(no_template))
    with pytest.raises(JobError, match="has no chat template"):
        look(tmp_path, prompts(1), model__name=str(no_template), prompt__chat=True)
    manifest = look(tmp_path, prompts(1), model__name=str(no_template), prompt__column="prompt")
    assert not manifest.chat
    template = tmp_path / "mine.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    with_own = look(
        tmp_path, [CHAT], model__name=str(no_template), model__chat_template=str(template)
    )
    assert with_own.fingerprint["model"]["chat_template"]


@pytest.mark.parametrize(("asked", "chat"), [(None, False), (True, True), (False, False)])
def test_a_tokenizer_of_bytes_makes_chat_only_if_asked(
    tmp_path: Path, asked: bool | None, chat: bool
) -> None:
    job = small_job("x", prompt__column="q", prompt__chat=asked)
    assert wants_chat(job, ByteTokenizer()) is chat


def test_a_model_with_a_template_makes_chat_unless_told_not_to(
    tmp_path: Path, tiny_model: Path
) -> None:
    assert look(tmp_path, prompts(1), model__name=str(tiny_model), prompt__column="prompt").chat
    assert not look(
        tmp_path, prompts(1), model__name=str(tiny_model), prompt__column="prompt",
        prompt__chat=False,
    ).chat  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "names", "column"),
    [
        ("auto", ["id", "custom_id"], "custom_id"),
        ("auto", ["prompt", "id"], "id"),
        ("auto", ["prompt"], ""),
        ("row", ["id"], ""),
        ("key", ["id", "key"], "key"),
    ],
)
def test_the_id_column(asked: str, names: list[str], column: str) -> None:
    assert choose_id_column(asked, "jsonl", [dict.fromkeys(names, "x")]) == column


def test_an_id_column_that_no_row_has_is_named_with_the_nearest() -> None:
    with pytest.raises(JobError, match="review_ids; did you mean review_id?"):
        choose_id_column("review_ids", "jsonl", [{"review_id": 1, "text": "x"}])
    with pytest.raises(JobError, match="zzz; there are: review_id, text"):
        choose_id_column("zzz", "jsonl", [{"review_id": 1, "text": "x"}])


def test_auto_takes_an_id_only_from_the_first_row() -> None:
    """So says the field: one stray `id` further down must not reject all rows before it."""
    assert choose_id_column("auto", "jsonl", [{"prompt": "a"}, {"prompt": "b", "id": 1}]) == ""


def test_batch_lines_are_known_by_their_custom_id() -> None:
    assert choose_id_column("auto", "openai-batch", []) == "custom_id"


def test_the_context_of_no_model_is_a_usual_one() -> None:
    assert choose_max_model_len(small_job("x")) == 8192


def test_the_context_is_the_model_s_own_or_a_shorter_one(tiny_model: Path) -> None:
    job = small_job("x", model__name=str(tiny_model))
    assert choose_max_model_len(job) == 4096
    job = small_job("x", model__name=str(tiny_model), engine__options={"max_model_len": 100})
    assert choose_max_model_len(job) == 100
    job = small_job("x", model__name=str(tiny_model), engine__options={"max_model_len": 4097})
    with pytest.raises(JobError, match="4097, but the model's own context is 4096"):
        choose_max_model_len(job)


@pytest.mark.parametrize("asked", [0, 1, -1, "long", True, 2.5, [1]])
def test_a_context_that_is_no_number_of_tokens(asked: Any) -> None:
    with pytest.raises(JobError, match="max_model_len: a number of tokens"):
        choose_max_model_len(small_job("x", engine__options={"max_model_len": asked}))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv"])
def test_an_empty_file_is_no_input(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(InputError) as caught:
        survey(small_job(tmp_path / name))
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("text", ["\n\n", "  \n\t\n"])
def test_a_file_of_blank_lines_is_no_input(tmp_path: Path, text: str) -> None:
    """Before any worker is started or a run directory made."""
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(InputError, match="no rows"):
        survey(small_job(tmp_path / "rows.jsonl"))


@pytest.mark.parametrize(
    ("name", "text"), [("rows.json", "[]"), ("rows.csv", "id,prompt\n"), ("rows.jsonl", "\n")]
)
def test_a_file_without_rows_is_no_input(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="no rows"):
        survey(small_job(tmp_path / name))


def test_bad_rows_are_rows(tmp_path: Path) -> None:
    look(tmp_path, ["", "{bad", "[]"])


def test_input_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        survey(small_job(tmp_path / "nope.jsonl"))


def test_a_real_engine_needs_a_model() -> None:
    with pytest.raises(JobError, match="no model is given"):
        check_engine(small_job("x", engine__kind="vllm"))
    check_engine(small_job("x"))


def test_a_model_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="there is no folder"):
        look(tmp_path, prompts(1), model__name=str(tmp_path / "nope"))


def test_code_of_a_model_is_not_run_unless_allowed(tmp_path: Path, tiny_model: Path) -> None:
    folder = tmp_path / "toy"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "toy", "auto_map": {"AutoConfig": "configuration_toy.ToyConfig"}}
    (folder / "config.json").write_text(json.dumps(config))
    marker = tmp_path / "imported"
    (folder / "configuration_toy.py").write_text(f"open({str(marker)!r}, 'w')\n")
    with pytest.raises(JobError, match="trust_remote_code"):
        look(tmp_path, prompts(1), model__name=str(folder))
    assert not marker.exists()


def test_a_chat_template_that_is_not_there_is_a_job_error(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"nope\.jinja"):
        look(tmp_path, prompts(1), model__chat_template=str(tmp_path / "nope.jinja"))


def test_timestamps_in_nanoseconds_are_read(tmp_path: Path) -> None:
    """They are what pandas writes."""
    table = pa.table({"prompt": ["a"], "at": pa.array([1_764_000_000_123_456_789],
                                                      pa.timestamp("ns"))})  # fmt: skip
    pq.write_table(table, tmp_path / "t.parquet")
    run = small_run(tmp_path, tmp_path / "t.parquet")
    (receipt,) = run.prepare()
    assert (receipt.rows, receipt.rejected) == (1, 0)


def test_equal_jobs_make_equal_manifests(tmp_path: Path) -> None:
    first, second = look(tmp_path, prompts(2)), survey(small_job(tmp_path / "rows.jsonl"))
    assert first == second
    assert first != replace(second, chat=not second.chat)


def test_a_template_without_a_column_asks_the_same_of_every_row(tmp_path: Path) -> None:
    """With Python's single braces the model would read `{text}` a million times."""
    rows: list[Row] = [{"text": "a"}, {"text": "b"}]
    for wrong, said in (
        ("Is this good? {text}", "{text} would be sent"),
        ("Hello", "ask the same"),
    ):
        with pytest.raises(JobError, match=said):
            look(tmp_path, rows, prompt__template=wrong)
    look(tmp_path, rows, prompt__template="{{ text }} as {json}")
    look(tmp_path, rows[:1], prompt__template="Hello")


def test_many_answers_to_one_prompt_can_be_wanted(tmp_path: Path) -> None:
    rows: list[Row] = [{"text": "a", "photo": "a.png"}, {"text": "b", "photo": "b.png"}]
    look(tmp_path, rows, prompt__template="A joke, please.", sampling__temperature=1.0)
    look(tmp_path, rows, prompt__template="A joke.", sampling__row_fields=["seed", "temperature"])
    look(tmp_path, rows, prompt__template="Describe the picture.", prompt__images="photo")
