"""A report in a browser: nothing is fetched, nothing is complained of, and a phone shows all of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchwright.pages.report import report_page
from tests.unit.pages.test_report import FACTS, FINDING

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

OPTIONS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report_page(FACTS, [FINDING]), encoding="utf-8")
    return path


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark")])
def test_a_browser_shows_all_of_it_and_asks_for_nothing(
    browser: Any, page_file: Path, width: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(page_file.as_uri())
    assert complaints == []
    assert requests == [page_file.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    cut = page.evaluate(
        "[...document.querySelectorAll('svg text, td, dd, h3')].filter(one => {"
        " const box = one.getBoundingClientRect();"
        " return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1) }"
        ").map(one => one.textContent)"
    )
    assert cut == []
    smallest = page.evaluate(
        "Math.min(...[...document.querySelectorAll('.figures svg text')]"
        ".map(one => one.getBoundingClientRect().height))"
    )
    assert smallest >= 9, "the labels of a chart can be read"
    context.close()
