from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.core.errors import RowError
from batchwright.core.media import MediaReference
from batchwright.core.records import Prompt
from batchwright.validate.media import MediaForms
from batchwright.validate.prompts import PromptBuilder

FORMS = MediaForms(["/data", "/more"], "/data/in")
PACKED = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(100)).decode()


def reference(value: Any, kind: Any = "image") -> MediaReference:
    return FORMS.from_value(kind, value, ["it"])


@pytest.mark.parametrize(
    ("value", "source"),
    [
        ("a.png", "/data/in/a.png"),
        ("sub/a b.png", "/data/in/sub/a b.png"),
        ("/more/a.png", "/more/a.png"),
        ("../a.png", "/data/a.png"),
        ("file:///data/a%20b.png", "/data/a b.png"),
        ("file://localhost/data/a.png", "/data/a.png"),
        ("https://example.org/a?b=c", "https://example.org/a?b=c"),
        ({"path": "a.png", "bytes": None}, "/data/in/a.png"),
        ({"url": "http://example.org/a"}, "http://example.org/a"),
    ],
)
def test_a_url_or_path_is_kept(value: Any, source: str) -> None:
    assert reference(value) == MediaReference("image", source)


@pytest.mark.parametrize(
    ("value", "at"),
    [
        (PACKED, ("it",)),
        (f"data:image/png;base64,{PACKED}", ("it",)),
        (b"\x89PNG", ("it",)),
        ({"bytes": b"\x89PNG", "path": "a.png"}, ("it", "bytes")),
        ({"data": "UklGRg==", "format": "wav"}, ("it", "data")),
    ],
)
def test_what_the_row_holds_is_named_and_not_copied(value: Any, at: tuple[str, ...]) -> None:
    assert reference(value) == MediaReference("image", at=at)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("../../etc/passwd", "media_forbidden"),
        ("/etc/passwd", "media_forbidden"),
        ("/dataother/a.png", "media_forbidden"),
        ("/data", "media_forbidden"),
        ("file://other/data/a.png", "media_forbidden"),
        ("ftp://example.org/a", "media_forbidden"),
        ("https://user:pw@example.org/a", "media_forbidden"),
        ("http://", "bad_media"),
        ("http://[::1/", "bad_media"),
        ("http://exa mple.org/", "bad_media"),
        ("a\0.png", "bad_media"),
        ("data:image/png,plain", "bad_media"),
        ("", "bad_media"),
        (b"", "bad_media"),
        (7, "bad_media"),
        ({}, "bad_media"),
        ("x" * 9000, "bad_media"),
    ],
)
def test_a_bad_form_has_its_code(value: Any, code: str) -> None:
    with pytest.raises(RowError) as caught:
        reference(value)
    assert caught.value.code == code


@given(st.lists(st.sampled_from(["..", ".", "a", "data", "more", "", "in"]), max_size=9))
def test_no_path_leads_out_of_the_allowed_folders(steps: list[str]) -> None:
    codes = []
    sources = []
    try:
        sources.append(reference("/".join(steps) or ".").source)
    except RowError as error:
        codes.append(error.code)
    assert set(codes) <= {"media_forbidden", "bad_media"}
    assert all(one.startswith(("/data/", "/more/")) and ".." not in one for one in sources)


def messages(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


TEXT = {"type": "text", "text": "what?"}
A = MediaReference("image", "/data/in/a.png")
B = MediaReference("image", "/data/in/b.png")


def build(row: dict[str, Any], **settings: Any) -> Prompt:
    return PromptBuilder(**settings).build(row, FORMS)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "a.png"}},
        {"type": "image_url", "image_url": "a.png"},
        {"type": "input_image", "image_url": "a.png"},
        {"type": "image", "image": "a.png"},
        {"type": "image", "path": "a.png"},
    ],
)
def test_every_way_to_write_an_image_becomes_the_same(part: Any) -> None:
    prompt = build(messages(part, TEXT))
    assert prompt.media == (A,)
    assert prompt.messages == [{"role": "user", "content": [{"type": "image"}, TEXT]}]


def test_messages_without_media_stay_one_text() -> None:
    prompt = build(messages(TEXT, TEXT))
    assert prompt.messages == [{"role": "user", "content": "what?\nwhat?"}]
    assert prompt.media == ()


def test_audio_in_messages_is_found_where_it_stands() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    prompt = build(messages(TEXT, sound))
    at = ("messages", 0, "content", 1, "input_audio", "data")
    assert prompt.media == (MediaReference("audio", at=at),)


def test_a_column_fills_the_places_that_messages_keep() -> None:
    row = messages({"type": "image"}, TEXT, {"type": "image"}) | {"pics": ["a.png", "b.png"]}
    assert build(row, media={"image": "pics"}).media == (A, B)
    with pytest.raises(RowError, match="keep 2 places for image, the row has 1"):
        build(row | {"pics": "a.png"}, media={"image": "pics"})
    with pytest.raises(RowError, match="keep 1 places"):
        build(messages({"type": "image"}))


def test_a_column_without_places_goes_ahead_of_the_last_question() -> None:
    row = {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": "b.png"}, TEXT]},
            {"role": "assistant", "content": "a cat"},
            {"role": "user", "content": "and this?"},
        ],
        "pics": "a.png",
    }
    prompt = build(row, media={"image": "pics"})
    assert prompt.media == (B, A)
    assert (prompt.messages or [])[-1]["content"] == [
        {"type": "image"}, {"type": "text", "text": "and this?"},
    ]  # fmt: skip


def test_a_column_beside_a_prompt_text() -> None:
    row = {"q": "what?", "pics": ["a.png"]}
    chat = build(row, column="q", chat=True, media={"image": "pics"})
    assert chat.media == (A,)
    raw = build(row, column="q", media={"image": "pics"})
    assert (raw.text, raw.media) == ("what?", (A,))
    assert build(row | {"pics": None}, column="q", media={"image": "pics"}).media == ()
    with pytest.raises(RowError, match="no field 'pic'; did you mean 'pics'"):
        build(row, column="q", media={"image": "pic"})


def test_where_a_batch_line_holds_an_image_counts_from_the_line() -> None:
    prompt = PromptBuilder().build(
        messages({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PACKED}"}}),
        FORMS, ("body",),
    )  # fmt: skip
    assert prompt.media[0].at == ("body", "messages", 0, "content", 0, "image_url", "url")
