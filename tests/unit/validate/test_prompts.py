from __future__ import annotations

from typing import Any

import pytest

from batchwright.core.errors import REJECTION_CODES, JobError, RowError
from batchwright.core.records import Prompt
from batchwright.core.struct import Struct
from batchwright.validate.prompts import PromptBuilder
from batchwright.validate.token_ids import check_token_ids
from batchwright.validate.warnings import is_blank, special_token_finder

SHOTS = [({"text": "good"}, "pos"), ({"text": "bad\n"}, "neg")]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def refusal(builder: PromptBuilder, row: dict[str, Any]) -> RowError:
    with pytest.raises(RowError) as caught:
        builder.build(row)
    assert caught.value.code in REJECTION_CODES
    return caught.value


class TestAuto:
    @pytest.mark.parametrize(
        ("row", "prompt"),
        [
            ({"prompt": "hi"}, Prompt(text="hi")),
            ({"prompt": "hi", "messages": None}, Prompt(text="hi")),
            ({"prompt": [5, 6, 7]}, Prompt(token_ids=[5, 6, 7])),
            ({"prompt": [5.0, 6]}, Prompt(token_ids=[5, 6])),
            ({"prompt": "5 6 7"}, Prompt(text="5 6 7")),
            ({"prompt": "{{ 7*7 }} {% raw %}"}, Prompt(text="{{ 7*7 }} {% raw %}")),
            ({"prompt_token_ids": [1]}, Prompt(token_ids=[1])),
            ({"messages": [user("hi")]}, Prompt(messages=[user("hi")])),
            ({"messages": '[{"role":"user","content":"hi"}]'}, Prompt(messages=[user("hi")])),
            (
                {"messages": [user("hi")], "tools": [{"type": "function"}]},
                Prompt(messages=[user("hi")], tools=[{"type": "function"}]),
            ),
            ({"messages": [user("hi")], "tools": []}, Prompt(messages=[user("hi")])),
        ],
    )
    def test_accepts(self, row: dict[str, Any], prompt: Prompt) -> None:
        assert PromptBuilder(chat=True).build(row) == prompt

    @pytest.mark.parametrize(
        ("row", "code"),
        [
            ({}, "missing_prompt"),
            ({"prompt": None}, "missing_prompt"),
            ({"messages": None}, "missing_prompt"),
            ({"prompt": ""}, "empty_prompt"),
            ({"prompt": []}, "empty_prompt"),
            ({"messages": []}, "empty_prompt"),
            ({"messages": "[]"}, "empty_prompt"),
            ({"prompt": "a", "messages": [user("b")]}, "ambiguous_prompt"),
            ({"prompt": "a", "prompt_token_ids": [1]}, "ambiguous_prompt"),
            ({"prompt": ["a", "b"]}, "bad_prompt"),
            ({"prompt": [[1, 2], [3]]}, "bad_prompt"),
            ({"prompt": [user("hi")]}, "bad_prompt"),
            ({"prompt": 17}, "bad_prompt"),
            ({"prompt": {"text": "x"}}, "bad_prompt"),
            ({"prompt": [1, "x"]}, "bad_token_ids"),
            ({"prompt": [True, False]}, "bad_token_ids"),
            ({"prompt": [1.5]}, "bad_token_ids"),
            ({"prompt": [float("nan")]}, "bad_token_ids"),
            ({"prompt_token_ids": "1 2"}, "bad_token_ids"),
            ({"messages": [user("hi")], "tools": ["x"]}, "bad_messages"),
            ({"messages": [user("hi")], "tools": 3}, "bad_messages"),
        ],
    )
    def test_refuses(self, row: dict[str, Any], code: str) -> None:
        assert refusal(PromptBuilder(), row).code == code

    def test_near_miss_is_named(self) -> None:
        assert "'promt'" in refusal(PromptBuilder(), {"promt": "x"}).message

    def test_system_and_examples_go_ahead(self) -> None:
        builder = PromptBuilder(system="Be kind.", examples=[({"prompt": "q"}, "a")])
        assert builder.build({"prompt": "x"}).text == "Be kind.\n\nq a\n\nx"
        assert builder.build({"messages": [user("x")]}).messages == [
            system("Be kind."), user("q"), assistant("a"), user("x")
        ]  # fmt: skip
        own = [system("Mine."), user("x")]
        assert builder.build({"messages": own}).messages == [
            system("Mine."), user("q"), assistant("a"), user("x")
        ]  # fmt: skip
        assert refusal(builder, {"prompt": [1]}).code == "bad_prompt"


class TestColumn:
    def test_text_and_chat(self) -> None:
        assert PromptBuilder(column="q").build({"q": "hi"}) == Prompt(text="hi")
        chat = PromptBuilder(column="q", chat=True, system="S", examples=[({"q": "a"}, "b")])
        assert chat.build({"q": "hi"}).messages == [
            system("S"), user("a"), assistant("b"), user("hi")
        ]  # fmt: skip

    def test_token_ids_stay(self) -> None:
        assert PromptBuilder(column="q", chat=True).build({"q": [1, 2]}).token_ids == [1, 2]

    def test_missing_field_names_the_nearest(self) -> None:
        error = refusal(PromptBuilder(column="text"), {"txt": "a", "other": 1})
        assert (error.code, "'text'" in error.message) == ("missing_field", True)
        assert "'txt'" in error.message

    @pytest.mark.parametrize(
        ("value", "code"),
        [(None, "missing_prompt"), ("", "empty_prompt"), ([], "empty_prompt"), (3, "bad_prompt")],
    )
    def test_refuses(self, value: Any, code: str) -> None:
        assert refusal(PromptBuilder(column="q"), {"q": value}).code == code

    def test_messages_column(self) -> None:
        builder = PromptBuilder(messages="chat")
        assert builder.build({"chat": [user("x")], "prompt": "ignored"}).messages == [user("x")]
        assert refusal(builder, {"chats": []}).code == "missing_field"
        assert refusal(builder, {"chat": None}).code == "missing_prompt"
        assert refusal(builder, {"chat": ""}).code == "empty_prompt"


class TestTemplate:
    def test_text_head(self) -> None:
        builder = PromptBuilder(template="Text: {{ text }}", system="Label.", examples=SHOTS)
        assert builder.build({"text": "{{ 7*7 }}"}).text == (
            "Label.\n\nText: good pos\n\nText: bad\nneg\n\nText: {{ 7*7 }}"
        )

    def test_chat_turns(self) -> None:
        builder = PromptBuilder(template="T {{ text }}\n", examples=SHOTS[:1], chat=True)
        assert builder.build({"text": "x"}).messages == [
            user("T good\n"), assistant("pos"), user("T x\n")
        ]  # fmt: skip

    def test_template_that_places_system_itself(self) -> None:
        builder = PromptBuilder(
            template="{{ system }}|{% for e in examples %}{{ e.fields.text }}={{ e.answer }};"
            "{% endfor %}{{ text }}",
            system="S",
            examples=SHOTS[:1],
        )
        assert builder.build({"text": "x"}).text == "S|good=pos;x"
        assert builder.build({"text": "x", "system": "mine"}).text == "mine|good=pos;x"

    def test_missing_field(self) -> None:
        builder = PromptBuilder(template="{{ a }} {{ title }}")
        error = refusal(builder, {"a": 1, "titel": 2})
        assert error.code == "missing_field"
        assert "'title'" in error.message
        assert "'titel'" in error.message
        nested = refusal(PromptBuilder(template="{{ a.b }}"), {"a": {}})
        assert (nested.code, "'b'" in nested.message) == ("missing_field", True)

    def test_null_is_never_printed_as_none(self) -> None:
        builder = PromptBuilder(template="x {{ a }} {{ b or 'none' }}")
        error = refusal(builder, {"a": None, "b": None})
        assert (error.code, "'a'" in error.message) == ("missing_field", True)
        assert builder.build({"a": 1, "b": None}).text == "x 1 none"

    def test_optional_field(self) -> None:
        builder = PromptBuilder(template="{% if a is defined %}{{ a }}{% else %}-{% endif %}")
        assert builder.build({}).text == "-"

    @pytest.mark.parametrize(
        "template",
        [
            "{{ 1 // n }}",
            "{{ ''.__class__.__mro__ }}",
            "{{ n + 'x' }}",
            "{{ n.append(1) }}{{ [][3].x }}",
            "{% for i in range(10 ** 9) %}{% endfor %}",
            "{{ 'x'.rjust() }}",
        ],
    )
    def test_failures_and_escapes_are_row_errors(self, template: str) -> None:
        assert refusal(PromptBuilder(template=template), {"n": 0}).code in (
            "template_error", "missing_field"
        )  # fmt: skip

    @pytest.mark.parametrize("template", ["{{ a }}", "{{ a if a }}", "{{ a.x }}"])
    def test_bytes_are_no_text(self, template: str) -> None:
        """The model would read Python's spelling of them."""
        value: Any = {"x": b"\xff"} if "." in template else b"\xff"
        problem = refusal(PromptBuilder(template=template), {"a": value})
        assert problem.code == "template_error"
        assert "bytes are printed" in problem.message

    @pytest.mark.parametrize(
        "meta", [{}, {"age": None}, Struct({}, {"age"})], ids=["absent", "null", "parquet"]
    )
    @pytest.mark.parametrize(
        ("template", "text"),
        [
            ("{{ meta.age | default('?') }}", "?"),
            ("{{ meta['age'] | d('?') }}", "?"),
            ("{% if meta.age is defined %}{{ meta.age }}{% else %}?{% endif %}", "?"),
        ],
    )
    def test_null_is_as_good_as_absent(self, meta: Any, template: str, text: str) -> None:
        """Whether a file was JSON or Parquet must not decide which rows run."""
        assert PromptBuilder(template=template).build({"meta": meta}).text == text

    @pytest.mark.parametrize("meta", [{"age": None}, Struct({}, {"age"})], ids=["json", "parquet"])
    def test_a_null_is_a_null_within_objects_too(self, meta: Any) -> None:
        for template in ("{{ meta.age or '?' }}", "{% if meta.age is none %}?{% endif %}"):
            assert PromptBuilder(template=template).build({"meta": meta}).text == "?"
        problem = refusal(PromptBuilder(template="{{ meta.age }}"), {"meta": meta})
        assert (problem.code, "null" in problem.message) == ("missing_field", True)

    def test_a_slip_within_an_object_is_found(self) -> None:
        problem = refusal(PromptBuilder(template="{{ m.agee or '?' }}"), {"m": Struct({}, {"age"})})
        assert (problem.code, "'agee'" in problem.message) == ("missing_field", True)

    def test_empty_text(self) -> None:
        assert refusal(PromptBuilder(template="{{ a }}"), {"a": ""}).code == "empty_prompt"

    def test_syntax_error_names_the_line(self) -> None:
        with pytest.raises(JobError, match="line 2"):
            PromptBuilder(template="ok\n{{ broken")
        with pytest.raises(JobError, match="line 1"):
            PromptBuilder(template="{{ a | nosuchfilter }}")

    def test_example_without_field(self) -> None:
        with pytest.raises(JobError, match=r"examples, number 1.*'text'"):
            PromptBuilder(template="{{ text }}", examples=[({"txt": "a"}, "b")])
        with pytest.raises(JobError, match="examples, number 1"):
            PromptBuilder(column="q", examples=[({"p": "a"}, "b")])


def test_one_source_only() -> None:
    with pytest.raises(JobError, match="one of"):
        PromptBuilder(column="a", template="b")


def test_check_token_ids() -> None:
    check_token_ids([0, 99], 100)
    for ids in ([100], [-1], [4611686018427387905]):
        with pytest.raises(RowError) as caught:
            check_token_ids(ids, 100)
        assert caught.value.code == "bad_token_ids"


def test_blank() -> None:
    assert is_blank(Prompt(text="  \n\t"))
    assert is_blank(Prompt(text="\u200b\ufeff"))
    assert is_blank(Prompt(messages=[system("S"), user("")]))
    assert not is_blank(Prompt(text=" x"))
    assert not is_blank(Prompt(messages=[user("x")]))
    assert not is_blank(Prompt(token_ids=[1]))


def test_special_tokens_are_found_in_the_rows_own_text_only() -> None:
    find = special_token_finder(["<|im_end|>", "<image>", "<|im_end|>x", ""])
    assert find("a <|im_end|>x") == "<|im_end|>x"
    assert find("{box<image>:wide}") == "<image>"
    assert find("clean <|im_end>") is None
    assert special_token_finder([])("<image>") is None

    builder = PromptBuilder(template="<image> {{ text }}", system="<image>")
    row = {"text": "clean", "other": "<image>"}
    assert find(builder.own_text(row, builder.build(row))) is None
    row = {"text": "x <image>"}
    assert find(builder.own_text(row, builder.build(row))) == "<image>"
    for builder, row in [
        (PromptBuilder(system="<image>"), {"messages": [user("hi")]}),
        (PromptBuilder(system="<image>"), {"prompt": "hi"}),
        (PromptBuilder(column="q", system="<image>", chat=True), {"q": "hi"}),
        (PromptBuilder(), {"prompt": [1]}),
    ]:
        assert builder.own_text(row, builder.build(row)) in ("hi", "")
