"""Pages hold what was found, take no text for markup, and need nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from batchwright.core.errors import StorageError
from batchwright.core.workload import LengthHistogram
from batchwright.pages.blocks import source_name, write_page
from batchwright.pages.drawings import Span, draw_spans, draw_stack
from batchwright.pages.pilot import pilot_page
from batchwright.pages.plan import plan_page
from batchwright.pages.profile import profile_page
from batchwright.plan.explain import setting_rows
from tests.unit.pages.samples import EVIL, NO_SHARING, PROFILE, REPORT, make, read_page

PLAN = make()
PAGES: dict[str, Callable[[], str]] = {
    "profile": lambda: profile_page(PROFILE, EVIL),
    "plan": lambda: plan_page(PLAN, PROFILE, EVIL),
    "pilot": lambda: pilot_page(REPORT, EVIL),
}

each_page = pytest.mark.parametrize("kind", PAGES)


class Opened(HTMLParser):
    """The elements and attributes of a page as HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs


@each_page
def test_a_page_is_html_and_takes_no_text_for_markup(kind: str) -> None:
    html = PAGES[kind]()
    opened = Opened()
    opened.feed(html)
    assert "script" not in opened.names
    assert not [name for name, _ in opened.attributes if name.startswith("on")]
    page = read_page(html)
    (heading,) = page.all("h1")
    assert '<script>alert("1")</script>&amp;␀␛[31m' in (heading.text or "")
    assert len(page.all("section")) >= 4


@each_page
def test_a_page_needs_nothing_from_elsewhere(kind: str) -> None:
    html = PAGES[kind]()
    addresses = set(re.findall(r"https?://[^\"'<> ]+", html))
    assert addresses <= {"http://www.w3.org/1999/xhtml", "http://www.w3.org/2000/svg"}
    names = {name for one in read_page(html).root.iter() for name in one.attrib}
    assert not names & {"src", "href", "srcset", "data", "action"}
    assert "url(" not in html
    assert "@import" not in html
    assert len(html) < 60_000


@each_page
def test_a_page_is_light_or_dark_as_the_reader_has_it(kind: str) -> None:
    html = PAGES[kind]()
    assert "color-scheme: light dark" in html
    assert "@media (prefers-color-scheme: dark)" in html
    used = set(re.findall(r"var\((--\w+)\)", html))
    light, dark = html.split("prefers-color-scheme: dark", 1)
    for name in used:
        assert f"{name}: #" in light
        assert f"{name}: #" in dark


def test_a_profile_has_all_that_was_found() -> None:
    page = read_page(PAGES["profile"]())
    for wanted in (
        "5,000", "4,990", "10 rejected", "256", "3,000", "p99.9", "A sample of 50 %.",
        "rejected: missing_field", "499 rows, 61,234 prompt tokens", "10.0%", "é<1>",
        "Latin 90%, Han 10%", "42.1%", "11.3%", "40.9%", "12,800", "a cache of 8,192 tokens",
        "1,048,576", "640 tokens × 1,200 rows, first in row 3",
    ):  # fmt: skip
        assert wanted in page.text, wanted
    bars = [one for one in page.all("rect") if one.get("class") == "bar"]
    assert len(bars) > 16
    (quote,) = page.all("pre")
    assert (quote.text or "").startswith('<script>alert("1")</script>')


def test_a_profile_without_rows_or_sharing_is_a_page_too() -> None:
    empty = replace(PROFILE, valid=0, prompts=LengthHistogram(), longest=(), prefix=NO_SHARING)
    page = read_page(profile_page(replace(empty, sampled=None, exact=False), "rows.jsonl"))
    assert "a prefix cache saves nothing" in page.text
    assert "Lengths are estimates" in page.text
    assert not page.all("svg")


def test_a_plan_has_every_setting_and_the_memory_as_a_bar() -> None:
    page = read_page(PAGES["plan"]())
    for row in setting_rows(PLAN):
        for cell in row:
            assert cell in page.text, cell
    for wanted in ("KV cache", "driver and libraries", "bound by compute", "The longest row fits"):
        assert wanted in page.text
    stack = page.all("svg")[0]
    bar = [one for one in stack if one.get("height") == "32"]
    assert len(bar) == 6  # five terms and what is left
    assert sum(float(one.get("width", "0")) for one in bar) == pytest.approx(720, abs=0.5)
    assert "Lengths" in page.text  # the rows it is for


def test_a_pilot_has_its_intervals() -> None:
    page = read_page(PAGES["pilot"]())
    for wanted in (
        "980 of 50,000 rows", "0.80 h – 1.50 h", "$4.00 – $7.50", "61.2/s", "87%", "93%",
        "130.0 GB", "about 410", "rows are alike <b>", "0.10%", "80 of 100",
    ):  # fmt: skip
        assert wanted in page.text, wanted
    plain = replace(REPORT, usd=None, gpu_use=None, gpu_memory_bytes=None,
                    max_tokens_for_1_percent=None)  # fmt: skip
    text = read_page(pilot_page(plain, "rows.jsonl")).text
    assert "price not given" in text
    assert "GPUs busy" not in text
    assert "too many are cut to say" in text


def test_a_pilot_shows_how_long_the_answers_are() -> None:
    outputs = LengthHistogram((10, 20, 200), (1, 5, 2))
    page = read_page(pilot_page(replace(REPORT, outputs=outputs), "rows.jsonl"))
    assert "Output tokens per row" in page.text
    assert "output tokens (logarithmic)" in page.text


def test_bars_stay_within_their_drawing() -> None:
    for low, mark, high in ((0.0, 0.5, 1.0), (-1.0, 2.0, 3.0), (0.2, 0.2, 0.2)):
        drawing = read_page(draw_spans([Span("a", low, mark, high, "b")], "t"))
        for one in drawing.all("rect"):
            assert float(one.get("width", "")) >= 0
            assert 0 <= float(one.get("x", "")) <= 720 - float(one.get("width", "")) + 0.1
    assert len(read_page(draw_stack([("a", 1.0, "1")], ("rest", -1.0, "-"))).all("rect")) == 2


def test_a_page_goes_where_it_is_told_to(tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    write_page(path, PAGES["profile"]())
    assert read_page(path.read_text(encoding="utf-8")).all("h1")
    with pytest.raises(StorageError, match="cannot be written"):
        write_page(path / "below-a-file.html", "")


def test_several_files_have_a_short_name() -> None:
    assert source_name("rows.jsonl") == source_name(["rows.jsonl"]) == "rows.jsonl"
    assert source_name(["a.jsonl", "b.jsonl", "c.jsonl"]) == "a.jsonl and 2 more"
