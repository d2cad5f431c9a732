from __future__ import annotations

import pytest

from batchwright.profile.scripts import SCRIPTS, main_script


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("plain English, 2 + 2", "latin"), ("Grüße aus Köln", "latin"), ("请写一篇文章。", "cjk"),
        ("これはテストです", "cjk"), ("안녕하세요", "cjk"), ("Привет, мир", "cyrillic"),
        ("مرحبا بالعالم", "arabic"), ("नमस्ते दुनिया", "other"), ("Γειά σου", "other"),
        ("写 a word 关于猫的故事", "cjk"), ("ok — да, это так", "cyrillic"), ("\ud800 abc é", "latin"),
    ],
)  # fmt: skip
def test_the_script_of_most_letters(text: str, script: str) -> None:
    assert SCRIPTS[main_script(text)] == script


@pytest.mark.parametrize("text", ["", "1 + 1 = 2", "🎉🎉", "——…"])
def test_no_letters(text: str) -> None:
    assert main_script(text) == -1
