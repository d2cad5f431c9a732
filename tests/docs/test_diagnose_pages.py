"""Each finding has a page, each page a finding, and each page says how and how sure."""

from __future__ import annotations

import pytest

from batchwright.diagnose.rules import CODES
from tests.docs.pages import ROOT

FOLDER = ROOT / "docs" / "diagnose"


def test_each_code_has_a_page_and_each_page_a_code() -> None:
    pages = {page.stem for page in FOLDER.glob("*.md")} - {"README"}
    assert pages == set(CODES)


@pytest.mark.parametrize("code", CODES)
def test_a_page_says_what_how_and_what_to_do(code: str) -> None:
    text = (FOLDER / f"{code}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {code}: ")
    for part in ("**How it is known.** ", "**What to do.** ", "**What it is worth.** "):
        assert part in text
    assert f"({code}.md)" in (FOLDER / "README.md").read_text(encoding="utf-8")
