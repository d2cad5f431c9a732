from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchwright import prepare
from batchwright.core.errors import REJECTION_CODES, InputError, RowError
from batchwright.core.records import Prompt, RowBatch
from batchwright.rundir import layout
from batchwright.rundir.prepared import open_part, prepared_receipt
from batchwright.tokens.byte_level import ByteTokenizer
from tests.unit.rundir.small_runs import Row, SmallRun, prompts, small_run, write_rows

BOS = 1


class BosTokenizer(ByteTokenizer):
    """Bytes, with one BOS ahead of raw text and `<s>` as its spelling."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        return ("<s>",)

    def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        rows = super().encode(texts, add_special_tokens=add_special_tokens)
        return [[BOS, *ids] for ids in rows] if add_special_tokens else rows


class NoTemplate(ByteTokenizer):
    @property
    def has_chat_template(self) -> bool:
        return False

    def render_chat(self, prompt: Prompt) -> str:
        raise RowError("no_chat_template", "the model has no chat template")


def rows_of(run: SmallRun) -> list[dict[str, Any]]:
    """Every prepared row, as plain data."""
    files = [name for name in run.storage.names(layout.PREPARED) if name.endswith(".arrow")]
    paths = [f"{layout.PREPARED}/{name}" for name in files]
    return [row for path in paths for row in open_part(run.storage, path).read_all().to_pylist()]


def prepared(tmp_path: Path, rows: Sequence[Row] | Path, **settings: Any) -> list[dict[str, Any]]:
    run = small_run(tmp_path, rows, **settings)
    run.prepare()
    return rows_of(run)


def text_of(row: dict[str, Any]) -> str:
    return bytes(row["token_ids"]).decode()


GOOD = {"id": "good", "prompt": "fine"}
PLAIN: list[tuple[Row, str]] = [
    ('{"id": "x"', "bad_json"),
    ('{"id": "x", "prompt": "y"} {}', "bad_json"),
    (b'{"id": "x", "prompt": "\xff"}', "bad_unicode"),
    ('{"id": "x", "prompt": "\\ud800"}', "bad_unicode"),
    ("[1, 2]", "not_an_object"),
    ("null", "not_an_object"),
    ({"prompt": "x"}, "missing_id"),
    ({"id": None, "prompt": "x"}, "missing_id"),
    ({"id": "", "prompt": "x"}, "missing_id"),
    ({"id": 1.5, "prompt": "x"}, "bad_id"),
    ({"id": True, "prompt": "x"}, "bad_id"),
    ({"id": "x"}, "missing_prompt"),
    ({"id": "x", "prompt": None}, "missing_prompt"),
    ({"id": "x", "prompt": ""}, "empty_prompt"),
    ({"id": "x", "messages": []}, "empty_prompt"),
    ({"id": "x", "prompt": []}, "empty_prompt"),
    (
        {"id": "x", "prompt": "a", "messages": [{"role": "user", "content": "b"}]},
        "ambiguous_prompt",
    ),
    ({"id": "x", "prompt": {"a": 1}}, "bad_prompt"),
    ({"id": "x", "prompt": 7}, "bad_prompt"),
    ({"id": "x", "prompt": ["a", "b"]}, "bad_prompt"),
    ({"id": "x", "prompt": [[1], [2]]}, "bad_prompt"),
    ({"id": "x", "prompt": [1, "a"]}, "bad_token_ids"),
    ({"id": "x", "prompt": [True, False]}, "bad_token_ids"),
    ({"id": "x", "prompt": [1.5]}, "bad_token_ids"),
    ({"id": "x", "prompt": [1, 256]}, "bad_token_ids"),
    ({"id": "x", "prompt": [-1]}, "bad_token_ids"),
    ({"id": "x", "prompt": [2**70]}, "bad_token_ids"),
    ({"id": "x", "messages": [{"role": "king", "content": "a"}]}, "bad_messages"),
    ({"id": "x", "messages": [{"role": "user"}]}, "bad_messages"),
    ({"id": "x", "messages": "not json"}, "bad_messages"),
    ({"id": "x", "messages": [{"role": "assistant", "content": "a"}]}, "chat_template_error"),
    ({"id": "x", "prompt": "y" * 300}, "prompt_too_long"),
    ({"id": "x", "prompt": "y", "temperature": "hot"}, "bad_sampling"),
    ({"id": "x", "prompt": "a", "structured_outputs": {"regex": "[a-"}}, "bad_schema"),
    ({"id": "x", "prompt": "y", "max_tokens": 0}, "bad_sampling"),
    ({"id": "x", "prompt": "y", "min_tokens": 9, "max_tokens": 8}, "bad_sampling"),
    ({"id": "x", "prompt": "y", "best_of": 3}, "unsupported"),
    (
        {"id": "x", "messages": [{"role": "user", "content": [{"type": "video_url"}]}]},
        "unsupported",
    ),
    (
        {"id": "x", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "bad_media",
    ),
    (
        {
            "id": "x",
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "/etc/hostname"}}],
                }
            ],
        },
        "media_forbidden",
    ),
]
ENGINE = {"max_model_len": 256}


@pytest.fixture(scope="module")
def all_plain(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    rows: list[Row] = [GOOD, *(row for row, _ in PLAIN), GOOD]
    return prepared(tmp_path_factory.mktemp("plain"), rows, engine__options=ENGINE)


@pytest.mark.parametrize("index", range(len(PLAIN)))
def test_a_bad_row_gets_its_code(all_plain: list[dict[str, Any]], index: int) -> None:
    row = all_plain[index + 1]
    assert row["error_code"] == PLAIN[index][1], row["error"]
    assert row["error"]
    assert row["token_ids"] == []
    assert row["line"] == index + 2


def test_good_rows_among_bad_ones_are_untouched(all_plain: list[dict[str, Any]]) -> None:
    for row in (all_plain[0], all_plain[-1]):
        assert row["error_code"] is None
        assert text_of(row) == "fine"
        assert json.loads(row["input"]) == GOOD
    assert len(all_plain) == len(PLAIN) + 2


def test_the_codes_that_need_other_jobs(tmp_path: Path) -> None:
    seen = {code for _, code in PLAIN}
    row = {"id": "x", "messages": [{"role": "user", "content": "hi"}]}
    rows = prepared(tmp_path / "a", [GOOD, row], tokenizer=NoTemplate())
    seen.add(rows[1]["error_code"])
    rows = prepared(tmp_path / "b", [{"t": 2}, {"u": 1}, {"t": 0}], prompt__template="{{ 4 / t }}")
    assert [row["error_code"] for row in rows] == [None, "missing_field", "template_error"]
    seen.update(row["error_code"] for row in rows)
    (tmp_path / "c.csv").write_text("id,prompt\n1,a\n2\n3,b,c\n")
    rows = prepared(tmp_path / "c", tmp_path / "c.csv")
    assert [row["error_code"] for row in rows] == [None, "bad_csv", "bad_csv"]
    seen.update(row["error_code"] for row in rows)
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    rows = prepared(tmp_path / "d", [line, line | {"body": None}])
    assert [row["error_code"] for row in rows] == [None, "bad_envelope"]
    seen.update(row["error_code"] for row in rows)
    rows = prepared(tmp_path / "e", [{**GOOD, "adapter": "x"}], model__adapters={"y": "folder"})
    seen.add(rows[0]["error_code"])
    assert seen - {None} == REJECTION_CODES.keys() - {"duplicate_id"}


def test_the_message_of_a_long_prompt_names_both_numbers(all_plain: list[dict[str, Any]]) -> None:
    (row,) = [row for row in all_plain if row["error_code"] == "prompt_too_long"]
    assert "300 tokens" in row["error"]
    assert "256" in row["error"]


@pytest.mark.parametrize(
    ("value", "text"),
    [("007", "007"), ("a ", "a "), (7, "7"), (9007199254740993, "9007199254740993"),
     (2**64 + 1, "18446744073709551617"), (-5, "-5"), ("ü", "ü")],
)  # fmt: skip
def test_ids_are_kept_to_the_digit(tmp_path: Path, value: Any, text: str) -> None:
    (row,) = prepared(tmp_path, [{"id": value, "prompt": "x"}])
    assert row["id"] == text


def test_a_rejected_row_keeps_its_id(tmp_path: Path) -> None:
    rows = prepared(tmp_path, [GOOD, {"id": 9007199254740993, "prompt": ""}])
    assert rows[1]["id"] == "9007199254740993"


@pytest.mark.parametrize("column", ["custom_id", "id", "key"])
def test_the_id_column_is_the_asked_one_or_a_usual_one(tmp_path: Path, column: str) -> None:
    settings = {"input__id": "key"} if column == "key" else {}
    (row,) = prepared(tmp_path, [{column: "k", "prompt": "x"}], **settings)
    assert row["id"] == "k"


def test_rows_known_by_their_number_have_no_id_yet(tmp_path: Path) -> None:
    (row,) = prepared(tmp_path, [{"id": "unused", "prompt": "x"}], input__id="row")
    assert row["id"] is None


def test_raw_text_has_one_bos_and_chat_none_of_its_own(tmp_path: Path) -> None:
    rows: list[Row] = [
        {"prompt": "raw"}, {"messages": [{"role": "user", "content": "hi"}]}, {"prompt": [7, 8, 9]},
    ]  # fmt: skip
    raw, chat, ids = prepared(tmp_path, rows, tokenizer=BosTokenizer())
    assert raw["token_ids"] == [BOS, *b"raw"]
    assert text_of(chat) == "user: hi\nassistant:"
    assert ids["token_ids"] == [7, 8, 9]


@pytest.mark.parametrize("source", [{"prompt__column": "q"}, {"prompt__template": "{{ q }}"}])
def test_columns_and_templates_are_chat_messages_if_asked(
    tmp_path: Path, source: dict[str, str]
) -> None:
    rows: list[Row] = [{"q": "why?"}]
    chat = {"prompt__chat": True, "prompt__system": "Be brief."}
    (row,) = prepared(tmp_path / "chat", rows, **source, **chat)
    assert text_of(row) == "system: Be brief.\nuser: why?\nassistant:"
    (row,) = prepared(tmp_path / "raw", rows, **source)
    assert text_of(row) == "why?"


def test_a_real_tokenizer_renders_its_template_once(tmp_path: Path, tiny_model: Path) -> None:
    run = small_run(tmp_path, [{"q": "hi"}], prompt__column="q", model__name=str(tiny_model))
    assert run.manifest.chat
    from batchwright.equip.equipment import job_tokenizer

    run.tokenizer = job_tokenizer(run.job)
    run.prepare()
    (row,) = rows_of(run)
    (text,) = run.tokenizer.decode([row["token_ids"]], [[]])
    assert row["token_ids"].count(1) == 2  # <|im_start|> of the user and of the answer
    assert text == "user\nhi\nassistant\n"


def test_text_of_the_row_is_data(tmp_path: Path) -> None:
    rows = prepared(tmp_path, [{"q": "{{ 7*7 }}"}], prompt__template="Say: {{ q }}")
    assert text_of(rows[0]) == "Say: {{ 7*7 }}"


@pytest.mark.parametrize(
    ("row", "warnings"),
    [
        ({"prompt": "fine"}, None),
        ({"prompt": " \u200b\n"}, ["blank_prompt"]),
        ({"prompt": "a <s> b"}, ["special_tokens"]),
        ({"messages": [{"role": "user", "content": "<s>"}]}, ["special_tokens"]),
        ({"messages": [{"role": "user", "content": ""}]}, ["blank_prompt"]),
    ],
)
def test_odd_rows_run_with_a_warning(tmp_path: Path, row: Row, warnings: list[str] | None) -> None:
    run = small_run(tmp_path, [row], tokenizer=BosTokenizer())
    (receipt,) = run.prepare()
    (found,) = rows_of(run)
    assert found["error_code"] is None
    assert found["warnings"] == warnings
    assert receipt.warnings == dict.fromkeys(warnings or [], 1)


def test_special_tokens_of_the_job_s_own_template_are_no_warning(tmp_path: Path) -> None:
    rows = prepared(tmp_path, [{"q": "x"}], prompt__template="<s>{{ q }}", tokenizer=BosTokenizer())
    assert rows[0]["warnings"] is None


def test_another_model_in_an_envelope_is_a_warning(tmp_path: Path) -> None:
    body = {"prompt": "x", "model": "gpt-9", "max_tokens": 3, "temperature": 1}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}
    (row,) = prepared(tmp_path, [line])
    assert row["warnings"] == ["model_ignored"]
    assert row["max_tokens"] == 3
    assert json.loads(row["sampling"]) == {"temperature": 1.0}
    assert row["id"] == "1"


@pytest.mark.parametrize(
    ("length", "asked", "cap"), [(10, None, 90), (10, 5, 5), (10, 90, 90), (10, 91, 90), (99, 5, 1)]
)
def test_the_answer_is_capped_to_the_room_left(
    tmp_path: Path, length: int, asked: int | None, cap: int
) -> None:
    row: Row = {"prompt": "x" * length, "max_tokens": asked}
    (found,) = prepared(tmp_path, [row], engine__options={"max_model_len": 100})
    assert found["error_code"] is None
    assert found["max_tokens"] == cap


def rewrite_backwards(path: Path) -> None:
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))


def add_a_row(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b'{"id": "new", "prompt": "new"}\n')


def empty(path: Path) -> None:
    path.write_bytes(b"")


def break_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize("change", [rewrite_backwards, add_a_row, empty, break_off, Path.unlink])
@pytest.mark.parametrize("shared_bytes", [0, 1 << 20], ids=["a split each", "one split"])
def test_input_that_was_changed_after_the_run_began_is_not_mixed_with_what_was_there(
    tmp_path: Path, change: Callable[[Path], None], shared_bytes: int
) -> None:
    """By the counts all would be well: some rows would be there twice, and others not at all."""
    files = {"a.jsonl": prompts(9), "b.jsonl": prompts(9, 9)}
    run = small_run(tmp_path, files, shared_bytes=shared_bytes)
    first = run.prepare([0]) if not shared_bytes else []
    change(tmp_path / "data" / "b.jsonl")
    with pytest.raises(InputError, match=r"b\.jsonl.*(has changed|No such file)") as caught:
        run.prepare()
    assert caught.value.exit_code == 3
    assert len(run.storage.names(layout.PREPARED)) == 2 * len(first), "nothing more counts"


def test_input_that_is_changed_while_it_is_read_is_found_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run(tmp_path, prompts(20))
    path = tmp_path / "data" / "rows.jsonl"
    batches = prepare.read_split

    def changing(*arguments: Any, **options: Any) -> Iterator[RowBatch]:
        yield from batches(*arguments, **options)
        rewrite_backwards(path)

    monkeypatch.setattr(prepare, "read_split", changing)
    with pytest.raises(InputError, match="has changed since the run began"):
        run.prepare()


def test_a_row_whose_shortest_answer_has_no_room_does_not_reach_the_engine(tmp_path: Path) -> None:
    """The engine would refuse it: min_tokens above max_tokens."""
    row: Row = {"prompt": "x" * 95, "min_tokens": 10, "max_tokens": 20}
    (found,) = prepared(tmp_path, [row], engine__options={"max_model_len": 100})
    if found["error_code"] is None:
        assert json.loads(found["sampling"]).get("min_tokens", 0) <= found["max_tokens"]
    else:
        assert found["error_code"] in ("prompt_too_long", "bad_sampling")


LETTERS = "".join(chr(ord("a") + place % 26) for place in range(200))


@pytest.mark.parametrize("policy", ["truncate_left", "truncate_right"])
@pytest.mark.parametrize(("max_tokens", "kept"), [(30, 70), (60, 50), (1000, 50)])
def test_a_long_prompt_is_cut_on_the_asked_side(
    tmp_path: Path, policy: str, max_tokens: int, kept: int
) -> None:
    """Room for max_tokens is made, but never more than half of the context."""
    rows: list[Row] = [{"prompt": LETTERS}, {"prompt": "short"}]
    long, short = prepared(
        tmp_path, rows, plan__over_length=policy, sampling__max_tokens=max_tokens,
        engine__options={"max_model_len": 100},
    )  # fmt: skip
    assert long["truncated"] is True
    assert text_of(long) == (LETTERS[-kept:] if policy == "truncate_left" else LETTERS[:kept])
    assert long["max_tokens"] == min(max_tokens, 100 - kept)
    assert (short["truncated"], text_of(short)) == (False, "short")


def test_cutting_a_prompt_on_the_left_keeps_its_bos(tmp_path: Path) -> None:
    (row,) = prepared(
        tmp_path, [{"prompt": LETTERS}], plan__over_length="truncate_left",
        sampling__max_tokens=30, engine__options={"max_model_len": 100}, tokenizer=BosTokenizer(),
    )  # fmt: skip
    assert row["token_ids"] == [BOS, *LETTERS[-69:].encode()]


def test_cutting_a_chat_keeps_the_header_of_the_answer(tmp_path: Path) -> None:
    """Without it the model goes on with the user's words instead of answering."""
    (row,) = prepared(
        tmp_path, [{"messages": [{"role": "user", "content": LETTERS}]}],
        plan__over_length="truncate_right", engine__options={"max_model_len": 100},
    )  # fmt: skip
    assert text_of(row).endswith("assistant:")


def test_no_room_for_the_shortest_answer_names_the_room(tmp_path: Path) -> None:
    row: Row = {"prompt": "x" * 95, "min_tokens": 10}
    settings = {"engine__options": {"max_model_len": 100}}
    (found,) = prepared(tmp_path / "reject", [row], **settings)
    assert found["error_code"] == "prompt_too_long"
    assert "95 tokens" in found["error"]
    assert "leaves 5 for an answer of at least 10" in found["error"]
    (found,) = prepared(
        tmp_path / "cut", [row | {"min_tokens": 60}], plan__over_length="truncate_left", **settings
    )
    assert (len(found["token_ids"]), found["max_tokens"]) == (40, 60)


def test_a_chat_is_cut_within_its_last_message(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": LETTERS}]
    head, tail = "system: Be kind.\nuser: ", "\nassistant:"
    room = 90 - len(head) - len(tail)
    for policy, body in [("truncate_left", LETTERS[-room:]), ("truncate_right", LETTERS[:room])]:
        (row,) = prepared(
            tmp_path / policy, [{"messages": turns, "max_tokens": 10}], plan__over_length=policy,
            engine__options={"max_model_len": 100}, tokenizer=BosTokenizer(),
        )  # fmt: skip
        assert text_of(row) == head + body + tail
        assert (row["truncated"], row["max_tokens"]) == (True, 10)


def test_a_chat_whose_earlier_turns_are_too_long_is_rejected(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": LETTERS}, {"role": "user", "content": "assistant:"}]
    (row,) = prepared(
        tmp_path, [{"messages": turns}], plan__over_length="truncate_left",
        engine__options={"max_model_len": 100},
    )  # fmt: skip
    assert row["error_code"] == "prompt_too_long"
    assert "must not be cut" in row["error"]
    assert (row["token_ids"], row["truncated"], row["max_tokens"]) == ([], False, 0)


def test_a_cut_prompt_of_token_ids_is_marked_too(tmp_path: Path) -> None:
    (row,) = prepared(
        tmp_path, [{"prompt": list(range(200))}], plan__over_length="truncate_left",
        sampling__max_tokens=10, engine__options={"max_model_len": 100},
    )  # fmt: skip
    assert row["token_ids"] == list(range(110, 200))
    assert row["truncated"]


def test_sampling_of_job_and_row_are_merged(tmp_path: Path) -> None:
    rows: list[Row] = [
        {"prompt": "a"},
        {"prompt": "b", "temperature": 0, "top_p": None, "stop": "x", "max_tokens": 9},
    ]
    plain, own = prepared(tmp_path, rows, sampling__preset="balanced", sampling__seed=3)
    assert json.loads(plain["sampling"]) == {"temperature": 0.7, "top_p": 0.9, "seed": 3}
    assert plain["max_tokens"] == 512
    assert json.loads(own["sampling"]) == {
        "temperature": 0.0, "top_p": 0.9, "seed": 3, "stop": ["x"],
    }  # fmt: skip
    assert own["max_tokens"] == 9


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [({"sampling__row_fields": "none"}, 512), ({"sampling__row_fields": ["seed"]}, 512),
     ({"prompt__column": "prompt"}, 512), ({"sampling__row_fields": ["max_tokens"]}, 4)],
)  # fmt: skip
def test_columns_override_sampling_only_where_they_may(
    tmp_path: Path, settings: dict[str, Any], tokens: int
) -> None:
    (row,) = prepared(tmp_path, [{"prompt": "a", "max_tokens": 4}], **settings)
    assert row["max_tokens"] == tokens


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchwright.prepare.ROWS_PER_BATCH", 2)
    monkeypatch.setattr("batchwright.prepare.ROWS_PER_PART", 4)


def test_a_split_is_prepared_in_parts_of_which_the_last_says_so(
    tmp_path: Path, small_parts: None
) -> None:
    run = small_run(tmp_path, ["", *prompts(4), "", "{bad", *prompts(4, 4), ""])
    receipts = run.prepare()
    assert [(one.part, one.rows, one.rejected, one.last) for one in receipts] == [
        (0, 4, 0, False), (1, 4, 1, False), (2, 1, 0, True),
    ]  # fmt: skip
    assert receipts[-1].num_lines == 12
    assert [row["line"] for row in rows_of(run)] == [2, 3, 4, 5, 7, 8, 9, 10, 11]
    assert sum(one.prompt_tokens for one in receipts) == sum(
        len(row["token_ids"]) for row in rows_of(run)
    )


def test_parts_that_are_there_are_passed_over(tmp_path: Path, small_parts: None) -> None:
    run = small_run(tmp_path, prompts(10))
    first = run.prepare()
    before = {name: (run.storage.root / "prepared" / name).stat().st_mtime_ns
              for name in run.storage.names(layout.PREPARED)}  # fmt: skip
    run.storage.delete(layout.prepared_receipt(0, 1))
    assert run.prepare() == first
    after = {name: (run.storage.root / "prepared" / name).stat().st_mtime_ns
             for name in run.storage.names(layout.PREPARED)}  # fmt: skip
    written = {name for name in after if after[name] != before[name]}
    assert written == {"part-000000-0001.arrow", "part-000000-0001.json"}


def test_an_empty_split_makes_one_empty_part(tmp_path: Path) -> None:
    run = small_run(tmp_path, {"a.jsonl": prompts(1), "b.jsonl": ["", " "]})
    run.prepare()
    receipt = prepared_receipt(run.storage, 1, 0)
    assert receipt is not None
    assert (receipt.rows, receipt.rejected, receipt.last, receipt.num_lines) == (0, 0, True, 2)


def test_a_part_whose_receipt_names_its_hash(tmp_path: Path) -> None:
    import hashlib

    run = small_run(tmp_path, prompts(3))
    (receipt,) = run.prepare()
    assert hashlib.sha256(run.storage.read(receipt.file)).hexdigest() == receipt.sha256


def test_column_kinds_of_json_rows(tmp_path: Path) -> None:
    rows: list[Row] = [{"prompt": "a", "x": 1}, {"prompt": "b", "x": 2**63}, {"y": None}, "{bad"]
    (receipt,) = small_run(tmp_path, rows).prepare()
    assert receipt.column_kinds == {"prompt": ["string"], "x": ["int", "bigint"], "y": ["null"]}


def test_parquet_keeps_its_types_and_needs_no_kinds(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array([2**53 + 1, None]), "prompt": ["a", "b"]})
    pq.write_table(table, tmp_path / "t.parquet")
    run = small_run(tmp_path, tmp_path / "t.parquet")
    (receipt,) = run.prepare()
    assert receipt.column_kinds == {}
    first, second = rows_of(run)
    assert first["id"] == "9007199254740993"
    assert first["input"] == {"id": 2**53 + 1, "prompt": "a"}
    assert second["error_code"] == "missing_id"


def test_a_file_that_breaks_off_ends_the_split_loudly(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "cut.jsonl.gz"
    rows = write_rows(tmp_path / "rows.jsonl", [{"prompt": f"{i}" * 50} for i in range(2000)])
    path.write_bytes(gzip.compress(rows.read_bytes())[:-200])
    run = small_run(tmp_path, path)
    with pytest.raises(InputError, match=r"cut\.jsonl\.gz"):
        run.prepare()
    assert not any(prepared_receipt(run.storage, 0, part) and
                   prepared_receipt(run.storage, 0, part).last for part in range(3))  # type: ignore[union-attr]  # fmt: skip


def test_what_an_answer_is_read_with_travels_beside_the_row(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": tools,
        "tool_choice": "required",
        "chat_template_kwargs": {"enable_thinking": False},
    }
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    settings = {"model__tool_call_parser": "hermes", "input__format": "openai-batch"}
    (row,) = prepared(tmp_path, [line], **settings)
    assert row["error_code"] is None, row["error"]
    assert json.loads(row["extras"]) == {
        "forced_call": "",
        "tools": tools,
        "chat_template_kwargs": {"enable_thinking": False},
    }


ADAPTERS = {"one": "some/folder", "two": "other/folder"}


def adapter_in(row: dict[str, Any]) -> str | None:
    return json.loads(row["extras"])["adapter"] if row["extras"] else None


def test_adapters_of_rows_travel_in_their_extras(tmp_path: Path) -> None:
    rows: list[Row] = [
        GOOD,
        {"id": "b", "prompt": "b", "adapter": "two"},
        {"id": "c", "prompt": "c", "model": "one"},
    ]
    found = prepared(tmp_path / "rows", rows, model__adapters=ADAPTERS)
    assert [adapter_in(row) for row in found] == [None, "two", "one"]
    found = prepared(tmp_path / "job", rows, model__adapters=ADAPTERS, model__adapter="one")
    assert [adapter_in(row) for row in found] == ["one", "two", "one"]


def test_an_envelopes_model_is_an_adapter_if_there_are_any(tmp_path: Path) -> None:
    def line(name: str | None) -> Row:
        body = {"prompt": "x", "model": name}
        return {"custom_id": str(name), "method": "POST", "url": "/v1/completions", "body": body}

    found = prepared(tmp_path, [line("two"), line(None), line("gpt-9")], model__adapters=ADAPTERS)
    assert [adapter_in(row) for row in found] == ["two", None, None]
    assert [row["error_code"] for row in found] == [None, None, "unknown_adapter"]
    assert "one, two" in found[2]["error"]
    assert [row["warnings"] for row in found] == [None, None, None]


class StrictTokenizer(ByteTokenizer):
    """A template that knows users and assistants in turn, and nobody else."""

    def render_chat(self, prompt: Prompt) -> str:
        roles = [turn["role"] for turn in prompt.messages or []]
        if roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
            raise RowError("chat_template_error", "roles must alternate")
        return "".join(f"<{turn['content']}>" for turn in prompt.messages or [])


def test_messages_that_the_template_refuses_are_merged_if_asked(tmp_path: Path) -> None:
    def row(*pairs: tuple[str, str]) -> Row:
        return {"messages": [{"role": role, "content": content} for role, content in pairs]}

    rows = [
        row(("user", "hi")),
        row(("system", "Be brief."), ("user", "hi")),
        row(("user", "one"), ("user", "two")),
        row(("assistant", "first"), ("user", "hi")),
    ]
    strict = StrictTokenizer()
    refused = prepared(tmp_path / "a", rows, tokenizer=strict)
    assert [one["error_code"] for one in refused] == [None, *["chat_template_error"] * 3]
    merged = prepared(tmp_path / "b", rows, tokenizer=strict, prompt__role_fallback="merge")
    assert [one["error_code"] for one in merged] == [None, None, None, "chat_template_error"]
    assert [text_of(one) for one in merged[:3]] == ["<hi>", "<Be brief.\n\nhi>", "<one\n\ntwo>"]
    assert [one["warnings"] for one in merged[:3]] == [None, ["roles_merged"], ["roles_merged"]]


def test_cells_of_csv_are_sampling_fields_too(tmp_path: Path) -> None:
    """Else no row of a CSV file could have its own: all of its cells are texts."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.csv").write_text(
        "id,prompt,max_tokens,temperature,stop,ignore_eos,response_format\n"
        'a,x,5,0.5,17,True,"{""type"": ""json_object""}"\nb,x,,,,,\nc,x,many,,,,\n'
    )
    first, second, third = prepared(tmp_path, folder)
    own = {"temperature": 0.5, "stop": ["17"], "ignore_eos": True}
    assert json.loads(first["sampling"]) == {**own, "structured_outputs": {"json_object": True}}
    assert first["max_tokens"] == 5
    assert (second["error_code"], second["max_tokens"]) == (None, 512)
    assert third["error_code"] == "bad_sampling"


def test_a_row_that_is_no_text_is_known_by_its_id(tmp_path: Path) -> None:
    rows: list[Row] = [
        '{"id": "a", "prompt": "p", "note": "cut \\ud83d"}', '{"id": "\\ud83d", "prompt": "p"}',
        '{"id": 7.5, "prompt": "\\ud83d"}',
    ]  # fmt: skip
    found = prepared(tmp_path, rows)
    assert [row["error_code"] for row in found] == ["bad_unicode"] * 3
    assert [row["id"] for row in found] == ["a", None, None]
