"""A look at answers and rows: written-out turns, loops, copies, shared beginnings."""

from __future__ import annotations

import pytest

from batchwright.views.glances import ends_in_loop, writes_turns


@pytest.mark.parametrize(
    ("text", "chat", "found"),
    [
        ("It is good.", True, False),
        ("It is good.<|im_end|>\n<|im_start|>user\nAnd", True, True),
        ("[/INST] sure", True, True),
        ("<start_of_turn>model", False, True),
        ("It is good.\nUser: and this one?", False, True),
        ("It is good.\nUser: and this one?", True, False),
        ("User: was the first word", False, False),
    ],
)
def test_turns_that_nobody_asked_for(text: str, chat: bool, found: bool) -> None:
    assert writes_turns(text, chat=chat) is found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", False),
        ("a short answer", False),
        ("no " * 20, False),
        ("It is. " + "no " * 40, True),
        ("x" * 200, True),
        ("The end is near. " + "and so on and on, " * 6, True),
        ("The end is near. " + "and so on and on, " * 3, False),
        ("".join(f"{number} is a number, " for number in range(40)), False),
        ("word " + "a whole sentence of about eighty characters, which is said again and again. " * 5,
         True),
        ("很好。" * 40, True),
        ("a loop " * 30 + "that ends in other words, many of them, so that all is well again in "
         "the end, as it should be with a good answer.", False),
    ],
)  # fmt: skip
def test_loops_at_the_end(text: str, found: bool) -> None:
    assert ends_in_loop(text) is found
